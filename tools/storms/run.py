"""The common part of storm and outage: bruce, its Kafka, its senders, and the final checks."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from spool.layout import Layout
from spool.shared.state import Field
from tests.daemon import free_port
from tools.bruce_process import Bruce
from tools.load import LoadOptions
from tools.storms.evidence import Evidence
from tools.storms.kafka_client import CODECS, Client, RunningClient
from tools.storms.options import StormOptions
from tools.storms.unmarked import keep_marks, unanswered
from tools.storms.watcher import Watcher
from tools.targets import Embedded, Real, Target
from tools.verify import counts_of, read_topics
from tools.verify_judge import judge
from tools.waiting import wait_until

GONE_S = 30.0
_MEAN_BYTES = 400
_KEPT_BYTES = 5 << 20
"""Of a partition of the embedded Kafka."""
_UNEVEN = 4
"""While brokers are away, some partitions get this multiple of their share."""


class StormRun:
    """One run. `messages`: how many were sent, once the senders' `report` has come."""

    def __init__(self, options: StormOptions, evidence: Evidence, target: Target, bruce: Bruce) -> None:
        self.options, self.evidence, self.target, self.bruce = options, evidence, target, bruce
        self.layout = Layout(bruce.spool)
        self.marks: list[tuple[Path, int]] = []
        """For each kill that ended a deliverer: copied marks, and the synced watermark."""

    def load(self, **changes: Any) -> LoadOptions:
        """The senders' mix: all topics and kinds, half with a partition key, batches of one sender in two.

        One message in 128 is larger than a staging slot.
        """
        options = {
            "senders": self.options.senders,
            "topics": tuple(self.options.topic_names),
            "sizes": (200, 400),
            "large": 6000,
            "keyed": 0.5,
            "batches": (1, 32),
            "headers": 0.4,
            "placed": 0.2,
            "partitions": partitions(self.options),
            "tombstones": 0.1,
            "seed": self.options.seed,
        }
        return LoadOptions(self.bruce.socket, **{**options, **changes})

    @contextmanager
    def kafka_clients(self) -> Iterator[list[RunningClient]]:
        """The Kafka clients, numbered behind the senders. They end with the block."""
        options = self.options
        with ExitStack() as running:
            yield [
                running.enter_context(RunningClient(self._kafka_client(number)))
                for number in range(options.kafka_clients)
            ]

    def _kafka_client(self, number: int) -> Client:
        options = self.options
        return Client(
            f"127.0.0.1:{self.bruce.inputs[0]['kafka']}",
            options.topic_names,
            partitions(options),
            options.senders + number,
            options.kafka_rate,
            (200, 400),
            options.seed + number,
            CODECS[number % len(CODECS)],
        )

    def keep_marks(self) -> None:
        """Copy the marks; call it after a deliverer died and before its successor begins."""
        directory = self.evidence.directory / "marks" / str(len(self.marks))
        keep_marks(self.layout, directory)
        self.marks.append((directory, self.bruce.word(Field.SYNCED_SEQUENCE)))

    def kill_all(self) -> None:
        """SIGKILL everything at once."""
        self.bruce.kill_all()
        self.keep_marks()

    def kill_worker(self, role: str) -> int:
        """SIGKILL a worker, which runs or will soon; its pid."""
        pid = 0

        def kill() -> bool:
            nonlocal pid
            pid = self.bruce.kill(role)
            return pid > 0

        wait_until(kill, GONE_S, f"a {role} to kill")
        if role == "delivery":
            wait_until(
                lambda: pid not in self.bruce.living(), GONE_S, f"the {role} to be gone", pause_s=0.0005
            )
            self.keep_marks()
        return pid

    def settle(self, watcher: Watcher) -> dict[str, Any]:
        """Wait until everything is delivered: the last status."""
        wait_until(
            lambda: (watcher.look() or {"backlog": 1})["backlog"] == 0,
            self.options.settle_s,
            f"the backlog to be delivered; the last status: {watcher.last}",
            pause_s=0.5,
        )
        return watcher.last

    def judge(self, report: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        """Compare senders, status and Kafka; the summary."""
        evidence, sent = self.evidence, report["sent"]
        evidence.record("load", report)
        evidence.expect(status["received"] == sent, f"received {status['received']}, but {sent} were sent")
        evidence.expect(not status["discarded"], f"discarded: {status['discarded']}")
        evidence.say("reading everything back from Kafka")
        records, dropped = read_topics(self.target.bootstrap, self.options.topic_names)
        findings = judge(records, counts_of(report), dropped=dropped)
        evidence.record("findings", findings.as_dict())
        if not findings.clean:
            np.save(evidence.directory / "records.npy", records)
        evidence.expect(dropped == 0, f"Kafka itself dropped {dropped} messages: nothing is proven")
        evidence.expect(findings.clean, "Kafka has other messages than were sent", findings.as_dict())
        strange, explained = unanswered(self.layout, self.marks, records["sequence"])
        if not self.options.embedded:
            # The embedded Kafka does not recognise a retried request, so that a lost connection doubles too.
            evidence.expect(
                len(strange) == 0,
                f"{len(strange)} messages are in Kafka more often than kills explain",
                {"sequences": strange[:20].tolist()},
            )
        if self.options.mode == "exactly_once":
            evidence.expect(findings.duplicates == 0, f"{findings.duplicates} duplicates, exactly once")
        return {
            "seed": self.options.seed,
            "sent": sent,
            "received": status["received"],
            "in_kafka": findings.messages,
            "missing": findings.missing,
            "corrupt": findings.corrupt,
            "out_of_order": findings.out_of_order,
            "received_twice": findings.received_twice,
            "split": findings.split,
            "duplicates": findings.duplicates,
            "duplicates_possible": explained,
            "duplicates_unexplained": len(strange),
        }


def partitions(options: StormOptions) -> int:
    """Of each topic. The embedded Kafka drops records beyond its size, so there it has enough of them."""
    if not options.embedded:
        return options.partitions
    return max(options.partitions, options.messages * _MEAN_BYTES * _UNEVEN // options.topics // _KEPT_BYTES)


@contextmanager
def storm_run(options: StormOptions, evidence: Evidence) -> Iterator[StormRun]:
    """Kafka, the listening socket as the service manager would hold it, and a bruce that is not started."""
    topics = dict.fromkeys(options.topic_names, partitions(options))
    sockets = Path(tempfile.mkdtemp(prefix="bruce-storm-", dir="/dev/shm"))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    listener.bind(str(sockets / "bruce.sock"))
    settings: dict[str, dict[str, object]] = {
        "spool": {"max_bytes": options.room_mib << 20, "segment_bytes": options.segment_mib << 20},
        "dispatch": {"window_messages": options.window_messages, "mode": options.mode},
    }
    inputs = [{"kafka": free_port()}] if options.kafka_clients else []
    target: Target
    if options.embedded:
        target = Embedded(options.brokers, topics)
    else:
        target = Real(evidence.directory / "kafka", options.brokers, topics)
    try:
        with (
            target,
            Bruce(
                evidence.directory, target.bootstrap, settings=settings, inputs=inputs, listener=listener
            ) as bruce,
        ):
            yield StormRun(options, evidence, target, bruce)
    finally:
        listener.close()
        shutil.rmtree(sockets, ignore_errors=True)
