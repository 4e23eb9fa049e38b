"""A job of a user's own, on a cluster: what a spool holds, into Kafka by `write.format("bruce-kafka")`.

    python -m tests.real_kafka.writer_job SPOOL SERVERS TOPIC --master URL [--conf KEY=VALUE]...

Its transactional.id is the name of the topic. librdkafka takes but a few messages at a time, so that there
are many transactions.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dispatch.options import DispatchOptions
from pipeline.delivery.route import route
from pipeline.delivery.route_plan import plan_routes
from pipeline.delivery.sink import arrange
from pipeline.session import open_session
from spool.layout import Layout

AT_A_TIME = 200
"""Messages that librdkafka takes before it has sent some."""


def _main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("spool", "servers", "topic", "--master"):
        parser.add_argument(name)
    parser.add_argument("--conf", action="append", default=[])
    given = parser.parse_args()
    kafka = {"bootstrap.servers": given.servers}
    routes = plan_routes(DispatchOptions(kafka=kafka), [given.topic], {}, [Layout(Path(given.spool))])
    with open_session(given.master, dict(one.split("=", 1) for one in given.conf)) as session:
        placed = route(session.read.format("bruce").load(given.spool), routes)
        rows = arrange(placed, in_transactions=True).write.format("bruce-kafka").mode("append")
        own = {"transactional.id": given.topic, "queue.buffering.max.messages": str(AT_A_TIME)}
        rows.options(**kafka, **own).save()


if __name__ == "__main__":
    _main()
