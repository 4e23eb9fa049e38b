"""Messages of the newer kinds, and batches of them: many in a datagram, with all that a message may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from spool.format.wire import MAX_BATCH, MAX_HEADERS, encode, encode_batch, encode_message
from tools.adversaries.attack import Flood, Settings
from tools.adversaries.floods import judge_kept
from tools.adversaries.villain import Words

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

_ROUND = 4
_MOST_PARTITION = 2**31 - 1


class Batches(Flood):
    """Batches of as many messages as one may have, in the attack and in the control."""

    rate = 100
    good_bytes = 60
    good_round = _ROUND

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words
        first = number * _ROUND
        return [encode_batch(self.batch((first + i) * MAX_BATCH)) for i in range(_ROUND)]

    def batch(self, first: int) -> list[bytes]:
        """The messages of one batch; `first`: the number of messages before it."""
        raise NotImplementedError

    def good_datagram(self, arena: Arena) -> bytes:
        return encode_batch([arena.good_message(self.good_bytes)] * MAX_BATCH)


class BatchedNames(Batches):
    """Each message of a batch has a topic of its own, and every second name is one that Kafka cannot have."""

    name = "batched-names"
    settings: ClassVar[Settings] = {"spool": {"segment_bytes": 4 << 20}}

    def batch(self, first: int) -> list[bytes]:
        names = [b"%08x" % number if number % 2 else b"no / %x" % number for number in range(MAX_BATCH)]
        return [encode(b"%x" % first + name, b"") for name in names]

    def judge(self, arena: Arena) -> None:
        """Check that few of the names are kept."""
        judge_kept(arena)


class BatchedLastWrong(Batches):
    """The last message of each batch is malformed: all were looked at, and all are refused and counted."""

    name = "batched-last-wrong"

    def batch(self, first: int) -> list[bytes]:
        del first
        good = encode(b"flood", bytes(20))
        return [good] * (MAX_BATCH - 1) + [good[:8] + b"\x01\x01" + good[10:]]

    def judge(self, arena: Arena) -> None:
        """Check that every message of a batch counts."""
        count = arena.discarded("flags")
        if not count or count % MAX_BATCH:
            arena.report(f"{count} messages were refused, of batches of {MAX_BATCH}")


class AbsentPartitions(Batches):
    """Each message names a partition that its topic does not have: Kafka is asked, and others do not wait."""

    name = "absent-partitions"

    def batch(self, first: int) -> list[bytes]:
        numbers = range(first, first + MAX_BATCH)
        return [encode_message(b"flood", b"v", partition=_MOST_PARTITION - number) for number in numbers]

    def judge(self, arena: Arena) -> None:
        """Check that they are discarded as what they are."""
        if not arena.discarded("partition"):
            arena.report("no message was discarded for its partition: nothing was tried")


class ManyHeaders(Flood):
    """As many headers as a message may have, with long names, the first of them bruce's own.

    The control has values of as many bytes.
    """

    name = "many-headers"
    rate = 500
    good_bytes = 63_000
    good_round = 10
    _OURS = ("bruce-id", bytes(24))
    _HEADERS: ClassVar = [_OURS, *((f"{number:0240}", b"") for number in range(MAX_HEADERS - 1))]

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del words, number
        return [encode_message(b"flood", b"v", headers=self._HEADERS)] * 10
