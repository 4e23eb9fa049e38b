"""A spool whose delivery is lent: its daemon, its Kafka, and its jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from dispatch.embedded import EmbeddedKafka
from spool.layout import Layout
from status.report import Snapshot
from tests.daemon import RunningBruce, consume
from tests.e2e.job import Job
from tests.router.outlet import check_order, keyed, numbers

PARTITIONS = 4
COUNT = 400


class LeaseRun:
    """A spool with a backlog, its daemon, its Kafka, and its jobs."""

    def __init__(self, directory: Path, kafka: EmbeddedKafka) -> None:
        self.kafka, self.points = kafka, directory / "points"
        self.bruce = RunningBruce(directory, kafka.bootstrap_servers)
        self.bruce.environ["BRUCE_CRASH_POINTS"] = str(self.points)
        self.layout = Layout(self.bruce.spool)
        self.sent = 0
        self.jobs: list[Job] = []

    def job(self, *, mortal: bool = False) -> Job:
        """A job that has begun to ask. `mortal`: the crash points are its own, too."""
        servers, environ = self.kafka.bootstrap_servers, dict(self.bruce.environ)
        if not mortal:
            del environ["BRUCE_CRASH_POINTS"]
        self.jobs.append(Job(self.bruce.spool, servers, PARTITIONS, environ))
        return self.jobs[-1]

    def send(self, count: int = COUNT) -> None:
        """Have these accepted and committed."""
        self.sent += self.bruce.send(keyed(count, first=self.sent))
        self.bruce.await_status(lambda s: s.watermarks.synced == self.sent)

    def backlog(self) -> Job:
        """With Kafka away messages are sent, and a job gets delivery; then Kafka is there again."""
        self.kafka.down()
        self.send()
        job = self.job()
        assert job.answer()[:2] == ["lent", self.sent]
        self.kafka.up()
        return job

    def settled(self) -> Snapshot:
        """Everything that was sent is delivered, and the totals say so."""
        seen = self.bruce.await_status(lambda s: s.backlog == 0 and s.lent is None, 60)
        assert (seen.received, seen.delivered, seen.discarded) == (self.sent, self.sent, {})
        return seen

    def records(self) -> list[Message]:
        """The records in Kafka: everything, in order, each number with one identity."""
        records = consume(self.kafka.bootstrap_servers, "t", PARTITIONS, self.sent, 60)
        assert set(numbers(records)) == set(range(self.sent))
        check_order(records)
        identities = {
            (n, dict(r.headers() or [])["bruce-id"]) for n, r in zip(numbers(records), records, strict=True)
        }
        assert len(identities) == self.sent
        return records

    def worker(self) -> int:
        """The pid of the delivery worker."""
        return next(w.pid for w in self.bruce.status().workers if w.role == "delivery")

    def close(self) -> None:
        """End everything."""
        for job in self.jobs:
            job.close()
        self.bruce.close()


@pytest.fixture
def lease_run(tmp_path: Path) -> Iterator[LeaseRun]:
    """With its daemon running, and two brokers."""
    with EmbeddedKafka(brokers=2, topics=[("t", PARTITIONS)]) as kafka:
        made = LeaseRun(tmp_path, kafka)
        try:
            made.bruce.start()
            yield made
        finally:
            made.close()
