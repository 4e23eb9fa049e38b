"""Attacks by what only a Message or a batch can hold: headers, named partitions, many messages at once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, ClassVar

from confluent_kafka import Consumer as KafkaConsumer

from dispatch.header_names import HEADER_NAME
from spool.format.wire import MAX_BATCH, MAX_HEADERS, encode, encode_batch, encode_message
from tools.adversaries.attack import Flood, Settings
from tools.adversaries.floods import MOST_KEPT, discards
from tools.adversaries.operations import brucectl, environ_of
from tools.adversaries.villain import SEQUENCE, Words
from tools.verify_consume import columns

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

_ROUND = 10
_NO_PARTITION = (1 << 31) - 1
_POLLS = 60
"""Of a second each."""


class BatchFlood(Flood):
    """Batches of as many messages as there may be, held against batches of good ones."""

    rate = 400
    good_bytes = 45

    def control(self, arena: Arena, stack: ExitStack) -> None:
        good = [encode_batch([arena.good_message(self.good_bytes)] * MAX_BATCH)] * _ROUND
        self._start(arena, stack, lambda _words, _number: good)

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words
        first = number * _ROUND * MAX_BATCH
        starts = range(first, first + _ROUND * MAX_BATCH, MAX_BATCH)
        return [encode_batch([self.message(start + i) for i in range(MAX_BATCH)]) for start in starts]

    def message(self, number: int) -> bytes:
        """The n-th of all."""
        raise NotImplementedError


class BatchedTopics(BatchFlood):
    """Every message of every batch has a topic of its own: a few system calls make tens of thousands."""

    name = "batched-topics"
    settings: ClassVar[Settings] = {"spool": {"segment_bytes": 4 << 20}}

    def message(self, number: int) -> bytes:
        return encode(b"%08x" % number, b"")


class BatchedNames(BatchFlood):
    """Every message of every batch has another name that Kafka can never have."""

    name = "batched-names"

    def message(self, number: int) -> bytes:
        return encode(b"no such / %d" % number, b"")

    def judge(self, arena: Arena) -> None:
        """Check that few of the names are kept."""
        if (kept := len(discards(arena))) > MOST_KEPT:
            arena.report(f"{kept} names of discarded messages are kept")


class AbsentPartitions(Flood):
    """Messages for partitions that their topic lacks: they wait until Kafka was asked, others do not."""

    name = "absent-partitions"
    good_bytes = 60

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words, number
        return [encode_message(b"flood", b"v", partition=_NO_PARTITION - i) for i in range(100)]

    def judge(self, arena: Arena) -> None:
        """Check that some were given up."""
        if not arena.discarded("partition"):
            arena.report("no message was given up for its partition: nothing was tried")


class ManyHeaders(Flood):
    """Small messages with 256 headers each, while brokers do not answer: memory of what is out is bounded."""

    name = "many-headers"
    timed = False
    rate = 250
    good_bytes = 60_000
    _TOGETHER = 40

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        arena.target.cut_all()
        stack.callback(arena.target.mend_all)
        super().begin(arena, stack)

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words, number
        one = encode_message(b"flood", b"", headers=[("", None)] * MAX_HEADERS)
        return [encode_batch([one] * self._TOGETHER)] * _ROUND


class ForgedIds(Flood):
    """Messages with headers by which they claim the numbers of the messages that come next.

    `brucectl inspect show --kafka` finds each message once, where it is. Root has messages between them, in
    the same topic.
    """

    name = "forged-ids"
    real = True
    rate = 200
    good_bytes = 8_000
    _OURS, _ASKED = b"of root", 3

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        self._spool = arena.identity()[0]
        super().begin(arena, stack)

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del number
        following = range(int(words[SEQUENCE]), int(words[SEQUENCE]) + MAX_HEADERS)
        ids = [(HEADER_NAME.decode(), self._spool + at.to_bytes(8, "big")) for at in following]
        return [encode_message(b"flood", b"v", headers=ids)]

    def step(self, arena: Arena) -> None:
        arena.send([encode(b"flood", self._OURS)])

    def judge(self, arena: Arena) -> None:
        """Ask for some of root's messages."""
        numbers = sorted(self._numbers(arena))
        for number in numbers[:: max(1, len(numbers) // self._ASKED)]:
            command = brucectl("inspect", "show", str(number), "--kafka", "--json")
            said = subprocess.run(command, env=environ_of(arena), check=True, stdout=subprocess.PIPE).stdout
            if (count := len(json.loads(said)["kafka"])) != 1:
                arena.report(f"message {number} is {count} times in Kafka, by its id")
        if not numbers:
            arena.report("none of root's messages is in Kafka: nothing was tried")

    def _numbers(self, arena: Arena) -> list[int]:
        """Of root's messages, by the first header of each record."""
        found: list[int] = []
        settings = {"bootstrap.servers": arena.target.bootstrap, "group.id": "ids"}
        with closing(KafkaConsumer({**settings, "auto.offset.reset": "earliest"})) as consumer:
            consumer.subscribe(["flood"])
            for _ in range(_POLLS):
                records = consumer.consume(10_000, 1.0)
                ours = [record for record in records if record.value() == self._OURS]
                found += columns(ours, {"flood": 0})["sequence"].tolist() if ours else []
                if found and not records:
                    break
        return found
