"""A job's driver without Spark: it borrows delivery, sends by confluent-kafka, and writes outcome files.

    python -m tests.e2e.job SPOOL SERVERS PARTITIONS

It answers each line of input with one line: `send N` the next messages in order, `record` what was sent since
the last time, `settle`, `check`, `end` (in order). The first line, unasked, says that delivery was lent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Producer

from pipeline.delivery.lease import DeliveryLease, delivery_lease
from pipeline.errors import LeaseLost
from pipeline.source.outcomes import read_outcomes
from pipeline.source.plan import plan_spool
from spool.errors import SpoolBusy
from spool.format.batch import Topics
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.outcome_file import write_outcomes
from spool.read.reader import Reader
from tests.daemon import ROOT


class Died(Exception):
    """The job has no answer any more."""


class Job:
    """The driver, from outside."""

    def __init__(self, spool: Path, servers: str, partitions: int, environ: Mapping[str, str]) -> None:
        """Start it; delivery is lent when `lent` returns."""
        command = [sys.executable, "-m", "tests.e2e.job", str(spool), servers, str(partitions)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=dict(environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def answer(self) -> Any:
        """Its next line."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise Died
        return json.loads(line)

    def tell(self, *words: object) -> Any:
        """Have something done; what came of it."""
        assert self._process.stdin
        print(*words, file=self._process.stdin, flush=True)
        return self.answer()

    def kill9(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.communicate(timeout=60)

    def end(self) -> None:
        """Let it end in order."""
        assert self.tell("end") == "ended"
        assert self._process.wait(60) == 0

    def close(self) -> None:
        """Leave no process behind."""
        self.kill9()


class _Driver:
    def __init__(self, lease: DeliveryLease, servers: str, partitions: int) -> None:
        self._lease, self._partitions = lease, partitions
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1})
        self._open = self._messages()
        self._unrecorded: list[int] = []

    def _messages(self) -> Iterator[tuple[int, str, int, bytes]]:
        """(sequence, topic, partition, value) of what is not delivered, in order."""
        layout = self._lease.layout
        pending = [range(*run) for run in read_outcomes(plan_spool(layout)).backlog]
        reader = Reader(SegmentList(layout), Topics())
        reader.allow(1 << 40, 0)
        while (batch := reader.next()) is not None:
            for row, sequence in enumerate(batch.sequence.tolist()):
                if sequence < self._lease.end and any(sequence in run for run in pending):
                    topic = batch.topics.names[batch.topic[row]].decode()
                    partition = int(batch.number[row]) % self._partitions
                    yield sequence, topic, partition, batch.value(row)

    def send(self, count: str) -> list[int]:
        """Deliver the next messages; their sequence numbers."""
        sent = []
        for sequence, topic, partition, value in self._open:
            identity = self._lease.spool + sequence.to_bytes(8, "big")
            self._producer.produce(topic, value, partition=partition, headers=[("bruce-id", identity)])
            sent.append(sequence)
            if len(sent) == int(count):
                break
        assert self._producer.flush(60) == 0
        self._unrecorded += sent
        return sent

    def record(self) -> str:
        """Write down what was sent; where."""
        done, self._unrecorded = np.array(self._unrecorded, np.int64), []
        try:
            reasons = np.zeros(len(done), np.int32)
            return str(write_outcomes(self._lease.outcomes, "task", self._lease.spool, done, reasons))
        except FileNotFoundError:
            return "late"

    def settle(self) -> str:
        """As the driver does between two batches."""
        self._lease.settle()
        return "settled"

    def check(self) -> str:
        """Whether it is still ours."""
        try:
            self._lease.check()
        except LeaseLost:
            return "lost"
        return "held"


def _say(answer: object) -> None:
    sys.stdout.write(f"{json.dumps(answer)}\n")
    sys.stdout.flush()


def main() -> None:
    """Do what the arguments say."""
    spool, servers, partitions = sys.argv[1:]
    try:
        with delivery_lease(Layout(Path(spool))) as lease:
            driver = _Driver(lease, servers, int(partitions))
            _say(["lent", lease.end, lease.claim.token])
            for line in sys.stdin:
                if line.strip() == "end":
                    break
                name, *arguments = line.split()
                _say(getattr(driver, name)(*arguments))
    except SpoolBusy as error:
        _say(["busy", str(error)])
        os._exit(3)
    _say("ended")


if __name__ == "__main__":
    main()
