"""A topic of one partition, as a consumer finds it: followed while it grows, and judged at the end."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from tools.leagues.sender import DIGITS
from tools.verify_consume import NO_SEQUENCE, RECORD
from tools.verify_judge import Findings, judge

BATCH = 10_000
LOOK_S = 0.2
AFTER_S = 2.0
"""After the last message that was missing: for copies that are still on their way."""
_KEY = 0
"""All messages have one key for the judge: in one partition all are in order."""


class Arrivals:
    """The topic from its beginning, as a consumer sees it that reads committed messages."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "league",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._numbers: list[int] = []
        self._offsets: list[int] = []
        self._seen: set[int] = set()
        self.last_at = time.monotonic()
        """When a message came last."""

    def look(self) -> int:
        """Take what has come; how many different messages there are."""
        for message in self._consumer.consume(BATCH, timeout=LOOK_S):
            if message.error():
                continue
            offset = message.offset()
            assert offset is not None
            number = number_of(message.value())
            self._numbers.append(number)
            self._seen.add(number)
            self._offsets.append(offset)
            self.last_at = time.monotonic()
        return len(self._seen - {-1})

    def follow(self, count: int, quiet_s: float, limit_s: float) -> None:
        """Look until `count` different messages are there, or none came for a while, or the time is over."""
        begun = time.monotonic()
        while time.monotonic() < begun + limit_s:
            if self.look() >= count:
                break
            if time.monotonic() > max(begun, self.last_at) + quiet_s:
                return
        end = time.monotonic() + AFTER_S
        while time.monotonic() < end:
            self.look()

    def findings(self, accepted: int) -> Findings:
        """Compare with messages 0 to `accepted`, by the judge of tools/verify."""
        records = np.zeros(len(self._numbers), RECORD)
        records["id"], records["offset"] = self._numbers, self._offsets
        records["key"], records["sequence"] = _KEY, NO_SEQUENCE
        records["corrupt"] = records["id"] < 0
        return judge(records, {0: accepted})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()


def number_of(value: bytes | None) -> int:
    """The number that a value names at both ends; -1 when it is not what was sent."""
    if not value or len(value) < 2 * DIGITS or value[:DIGITS] != value[-DIGITS:]:
        return -1
    return int(value[:DIGITS]) if value[:DIGITS].isdigit() else -1
