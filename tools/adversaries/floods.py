"""Datagrams that cost more than they seem."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from spool.format.wire import (
    BATCH_HEAD_BYTES,
    MAX_BATCH,
    MAX_DATAGRAM_BYTES,
    encode,
    encode_batch,
    encode_message,
)
from tools.adversaries.attack import Flood, Settings
from tools.adversaries.operations import brucectl, environ_of
from tools.adversaries.villain import Words
from tools.bruce_process import ROOT

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

_ROUND = 100
_MOST_NAMES = 1000
MOST_KEPT = 1_001
"""Of names of discarded messages: the first thousand, and one for all others."""
_MOST_MADE = 100
"""Topics of an attack of a minute or less: ten, and one a second."""
_FEW_NAMES: Settings = {"dispatch": {"unknown_topic_seconds": 1}, "spool": {"max_topics": _MOST_NAMES}}
GOLDEN = [ROOT / "tests/golden" / name for name in ("golden_datagrams.json", "messages.json")]


class DistinctTopics(Flood):
    """Every message has a topic of its own, of 200 bytes: sealing must not stand still, nor memory grow."""

    name = "distinct-topics"
    settings: ClassVar[Settings] = {"spool": {"segment_bytes": 4 << 20}}
    good_bytes = 250

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words
        first = number * _ROUND
        return [encode(b"t%0200d" % (first + i), b"v") for i in range(_ROUND)]


class DistinctShortTopics(Flood):
    """The same, with names of eight characters: the most of them that a segment has room for."""

    name = "distinct-short-topics"
    settings: ClassVar[Settings] = {"spool": {"segment_bytes": 4 << 20}}
    good_bytes = 60

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words
        first = number * _ROUND
        return [encode(b"%08x" % (first + i), b"") for i in range(_ROUND)]


class IllegalNames(Flood):
    """Names that Kafka can never have: delivery must discard them as fast as it sends good messages."""

    name = "illegal-names"
    good_bytes = 60

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words
        first = number * _ROUND
        return [encode(b"no such / name %d" % (first + i), b"v") for i in range(_ROUND)]

    def judge(self, arena: Arena) -> None:
        """Check that few of the names are kept."""
        if (kept := len(discards(arena))) > MOST_KEPT:
            arena.report(f"{kept} names of discarded messages are kept")


class IllegalNamesDeadLetters(IllegalNames):
    """The same, but each goes to a dead-letter topic: that takes longer, for these alone."""

    name = "illegal-names-dead-letters"
    settings: ClassVar[Settings] = {"dispatch": {"dead_letter_topic": "dead"}}


class UnknownNames(Flood):
    """Legal names that Kafka does not have, over and over new ones: they may wait, others may not.

    Those that were given up make room for others: more are given up than there is room for at a time.
    """

    name = "unknown-names"
    settings: ClassVar[Settings] = {"kafka": {"allow.auto.create.topics": False}, **_FEW_NAMES}
    good_bytes = 60
    rate = 1_000

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words
        first = number * _ROUND
        return [encode(b"unknown.%d" % (first + i), b"v") for i in range(_ROUND)]

    def judge(self, arena: Arena) -> None:
        """Check that names were given up, and forgotten."""
        if (count := arena.discarded("unknown_topic")) <= _MOST_NAMES // 2:
            arena.report(f"{count} messages were given up: no name was forgotten, and nothing was tried")


class MadeTopics(UnknownNames):
    """The same, with a Kafka that makes a topic of each name that it is asked for: of few of them."""

    name = "made-topics"
    settings: ClassVar[Settings] = {"kafka": {"allow.auto.create.topics": True}, **_FEW_NAMES}

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        self._before = arena.count_topics()
        super().begin(arena, stack)

    def judge(self, arena: Arena) -> None:
        """Check that topics were made, and few of them."""
        made = arena.count_topics() - self._before
        if not 0 < made <= _MOST_MADE:
            arena.report(f"Kafka has made {made} topics, and at most {_MOST_MADE} are to be made")


class RefusedRecords(Flood):
    """Messages without a key for a compacted topic, which Kafka refuses one by one, with others of its batch.

    Half of them have a null value, as if to delete a key. The control has messages with a key. Only Apache
    Kafka has compacted topics.
    """

    name = "refused-records"
    real = True
    _TOPIC = "compacted"

    def before(self, arena: Arena) -> None:
        arena.make_topic(self._TOPIC, 8, {"cleanup.policy": "compact"})

    def control(self, arena: Arena, stack: ExitStack) -> None:
        good = [encode(self._TOPIC.encode(), b"v", key=b"k%d" % number) for number in range(_ROUND)]
        self._start(arena, stack, lambda _words, _number: good)

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words, number
        bare, null = encode(self._TOPIC.encode(), b"v"), encode_message(self._TOPIC.encode(), None)
        return [encode_batch([bare, null])] * (_ROUND // 2)

    def judge(self, arena: Arena) -> None:
        """Check that Kafka refused some."""
        if not arena.discarded("invalid_record"):
            arena.report("Kafka refused no message: nothing was tried")


class TinyFlood(Flood):
    """The smallest message there is, as fast as two processes can."""

    name = "tiny-floods"
    good_bytes = 60
    rate = 100_000
    villains = 2

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words, number
        return [encode(b"f", b"")] * _ROUND


class HugeMessages(Flood):
    """The largest datagrams, in the flood topic, which no rule forbids: all are taken."""

    name = "huge-messages"
    rate = 500
    good_bytes = 65_400

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words, number
        return [encode(b"flood", bytes(65_400))] * 10

    def judge(self, arena: Arena) -> None:
        """Check that none was cut off."""
        if count := arena.discarded("truncated"):
            arena.report(f"{count} messages of the largest size were truncated")


class Malformed(Flood):
    """Random bytes and golden datagrams that were changed: each harms itself, and is counted."""

    name = "malformed"

    def __init__(self) -> None:
        golden = [json.loads(path.read_text()) for path in GOLDEN]
        self._golden = [bytes.fromhex(text) for text in hexes(golden)]

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words
        chance, found = random.Random(number), []  # noqa: S311  (to be repeated)
        for i in range(_ROUND):
            data = bytearray(chance.choice(self._golden) if self._golden and i % 4 else os.urandom(i))
            for _ in range(chance.randrange(1, 4)):
                if data:
                    data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            # It cannot hit topics of honest senders: [access] protects them.
            found.append(bytes(data[: chance.randrange(len(data) + 1)] if i % 8 == 0 else data))
        return found


class DiscardRows(Flood):
    """Every reason to refuse a datagram in each burst, so that each frame has as many rows as it may."""

    name = "discard-rows"

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words, number
        good = encode(b"topic", b"v" * 250, key=b"k")
        wrong = [b"", good[:-1], good[:4] + b"\x09\x09" + good[6:], good[:6] + b"\x01\x01" + good[8:]]
        wrong += [good[:8] + b"\x01\x01" + good[10:], good[:10] + b"\xff\xff" + good[12:]]
        wrong += [
            good[:25] + b"\x7f\xff\xff\xff" + good[29:],
            bytes(70_000),
            encode(b"forbidden", b"v" * 300),
        ]
        # Each also at the end of a batch that is good as far as there.
        one, most = encode(b"t", b""), MAX_BATCH - 1
        wrong += [_batch([*[one] * most, last]) for last in wrong if 0 < len(last) < MAX_DATAGRAM_BYTES // 2]
        return wrong * (_ROUND // len(wrong))


def _batch(parts: Sequence[bytes]) -> bytes:
    """A batch of these, right or not."""
    content = b"".join(parts)
    return struct.pack(">ihhh", BATCH_HEAD_BYTES + len(content), 0x103, 0, 0) + content


class QuotaNames(Flood):
    """More of one topic than the spool has room for, and names that differ from it in one byte.

    Kafka is away. The topic has a quota: neither the honest nor the other names pay for it.
    """

    name = "quota-names"
    timed = False
    settings: ClassVar[Settings] = {"topics.flood": {"quota": "10%"}, "spool": {"max_bytes": 64 << 20}}
    rate = 600
    good_bytes = 20_000
    _NEAR = (b"flooe", b"floof", b"flop\xff", b"floo", b"flood2")

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        arena.target.stop_all()
        stack.callback(arena.target.start_all)
        super().begin(arena, stack)

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words
        near = encode(self._NEAR[number % len(self._NEAR)], b"v")
        return [encode(b"flood", bytes(60_000)), near, encode_batch([near, encode(b"flood", bytes(60_000))])]

    def judge(self, arena: Arena) -> None:
        """Check that messages beyond the quota are discarded, all of them of that topic."""
        found = {row.get("topic") for row in discards(arena) if row["reason"] == "over_quota"}
        if found != {"flood"}:
            arena.report(f"messages are discarded for a quota, of topics {found}")


def discards(arena: Arena) -> list[dict[str, Any]]:
    """The rows of `brucectl discards`, by reason and topic."""
    command = brucectl("discards", "--json", "--samples", "0")
    said = subprocess.run(command, env=environ_of(arena), check=True, stdout=subprocess.PIPE).stdout
    return list(json.loads(said)["discards"])


def hexes(document: Any) -> list[str]:
    """Every text in a JSON document that is the hexadecimal of a datagram."""
    if isinstance(document, dict):
        return [text for value in document.values() for text in hexes(value)]
    if isinstance(document, list):
        return [text for value in document for text in hexes(value)]
    if isinstance(document, str) and len(document) >= 16 and not len(document) % 2:  # noqa: PLR2004
        return [document] if all(c in "0123456789abcdef" for c in document) else []
    return []
