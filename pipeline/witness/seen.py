"""One spool in one tier, as it was seen: which sequences, which of them twice, and sums over blocks.

A block has 4,096 sequences, and its sums are those of `spool.format.block_sums`, of the first record of each
sequence. A block whose sums were compared with the spool's, and were equal, is settled: its sums are
forgotten, and later records of it count in `seen` and `twice` alone.

Strangers can write to Kafka, and a sequence in it may be any number. So sums are kept only up to MARGIN
messages beyond the end of the spool as the witness last read it. A block of which a record was farther away
is in `unsummed`: its sums are not complete.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from spool.format.block_sums import Blocks, add_sums
from spool.format.message_hash import Words
from spool.format.segment_format import SUM, SUM_BITS, Record

Mask = npt.NDArray[np.bool_]
MARGIN = 1 << 24
"""Messages that a spool may have stored since its end was read."""
SEEN_SUM = np.dtype([*((name, SUM[name]) for name in SUM.names or ()), ("untimed", "<u4")])
"""The SUM of the records of a block; `untimed` of them have the broker's time, and are not in `times`."""
MOST_STRANGE = 4096
"""Blocks with sums, among those of a spool, that are not its own: of more of them the sums are forgotten."""
BITMAPS = ("seen", "twice", "settled", "unsummed", "due")
PART_BITS = 24
"""A part of a bitmap has 2^24 numbers: it is written whole when one of them is new."""
_SUMS = SEEN_SUM.names or ()
_ROW = np.dtype([("spool", "<i8"), ("block", "<i8"), *((name, SEEN_SUM[name]) for name in _SUMS)])
_ROWS = 1024


class Numbers:
    """A set of numbers that only grows, and its `parts` with numbers that are not written yet."""

    def __init__(self) -> None:
        self.bitmap = BitMap64()
        self.parts = set[int]()

    def add(self, numbers: Words) -> None:
        """Add some, of which none is negative. int64[n > 0], ascending, none twice."""
        first, last = int(numbers[0]), int(numbers[-1])
        # Other ways to add numbers take longer the more are there.
        if last - first + 1 == len(numbers):
            self.bitmap.add_range(first, last + 1)
        else:
            self.bitmap.update(array("Q", numbers.tobytes()))
        if first >> PART_BITS == last >> PART_BITS:
            self.parts.add(first >> PART_BITS)
        else:
            self.parts.update(np.unique(numbers >> PART_BITS).tolist())

    def merge(self, numbers: BitMap64) -> None:
        """Add some, which may be many in few runs."""
        new = numbers - self.bitmap
        self.bitmap |= new
        at = new.min() if new else -1
        while at >= 0:
            part = at >> PART_BITS
            self.parts.add(part)
            behind = (part + 1) << PART_BITS
            at = new.next_set_bit(behind) if new.max() >= behind else -1

    def packed(self) -> Iterator[tuple[int, bytes]]:
        """(part, its numbers in Roaring's portable format) of each part that is not written yet."""
        if self.parts:
            self.bitmap.run_optimize()
        for part in sorted(self.parts):
            numbers = BitMap64()
            numbers.add_range(part << PART_BITS, (part + 1) << PART_BITS)
            numbers &= self.bitmap
            numbers.run_optimize()
            yield part, numbers.serialize()


class BlockTable:
    """Sums of the blocks of all spools of a tier: `rows`, of which the `changed` ones are not written yet."""

    def __init__(self) -> None:
        self.rows, self.changed = np.zeros(_ROWS, _ROW), np.zeros(_ROWS, np.bool_)
        self._free = list(range(_ROWS))

    def take(self, spool: int, block: int) -> int:
        """A row for a block, with sums of 0."""
        if not self._free:
            count = len(self.rows)
            self.rows = np.concatenate([self.rows, np.zeros(count, _ROW)])
            self.changed = np.concatenate([self.changed, np.zeros(count, np.bool_)])
            self._free = list(range(count, 2 * count))
        row = self._free.pop()
        self.rows[row] = (spool, block, 0, 0, 0, 0)
        return row

    def free(self, row: int) -> None:
        """Give a row back."""
        self.changed[row] = False
        self._free.append(row)

    def add(self, at: Words, sums: Record, untimed: Words) -> None:
        """Add SUM[n] and int64[n] to rows int64[n], of which none is there twice."""
        add_sums(self.rows, at, sums)
        self.rows["untimed"][at] += untimed.astype(np.uint32)
        self.changed[at] = True

    def sums(self, at: Words) -> Record:
        """SEEN_SUM[n] of rows int64[n]."""
        sums = np.zeros(len(at), SEEN_SUM)
        for name in _SUMS:
            sums[name] = self.rows[name][at]
        return sums

    def packed(self) -> Iterator[tuple[int, ...]]:
        """(spool, block, content, times, count, untimed) of the changed rows; content is signed."""
        rows = self.rows[self.changed]
        columns = (
            rows[name].view(np.int64) if name == "content" else rows[name] for name in _ROW.names or ()
        )
        return zip(*(one.tolist() for one in columns), strict=True)


class SpoolSeen:
    """One spool. Its bitmaps are to be read alone; `number` and `uuid` name it in the witness."""

    def __init__(self, number: int, uuid: bytes, table: BlockTable) -> None:
        self.number, self.uuid, self.table = number, uuid, table
        self.sets = {name: Numbers() for name in BITMAPS}
        self.rows = dict[int, int]()
        """The row in the table of each block that has sums."""
        self.gone = list[int]()
        """Blocks whose sums are forgotten, and may be written yet."""
        self.summed_end = 0
        """The block from which on there are no sums."""
        self.is_changed = True
        """Whether `summed_end` is not written yet."""
        self.seen = self.sets["seen"].bitmap
        """Sequences of which there is a record."""
        self.twice = self.sets["twice"].bitmap
        """Sequences of which there are two records, or more."""
        self.settled = self.sets["settled"].bitmap
        """Blocks whose sums were equal to the spool's, and are forgotten."""
        self.unsummed = self.sets["unsummed"].bitmap
        """Blocks with records that are in no sum."""
        self.due = self.sets["due"].bitmap
        """Sequences that must have been seen by now."""

    def sums(self) -> tuple[Blocks, Record]:
        """(numbers of blocks int64[n] ascending, SEEN_SUM[n]) of the blocks that are not settled."""
        blocks = np.fromiter(self.rows, np.int64, len(self.rows))
        rows = np.fromiter(self.rows.values(), np.int64, len(self.rows))
        order = np.argsort(blocks)
        return blocks[order], self.table.sums(rows[order])

    def settle(self, blocks: Blocks) -> None:
        """Forget the sums of these blocks, which are equal to the spool's. int64[n], in any order."""
        if not len(blocks):
            return
        blocks = np.unique(blocks)
        self.sets["settled"].add(blocks)
        for block in blocks.tolist():
            row = self.rows.pop(block, None)
            if row is not None:
                self.table.free(row)
                self.gone.append(block)

    def limit(self, blocks: Blocks, most: int = MOST_STRANGE) -> None:
        """Forget the sums of blocks that the spool has not, if they are too many.

        `blocks`: of its messages, int64[n], ascending. Those behind the last one may still come.
        """
        if not len(blocks):
            return
        ours = np.fromiter(self.rows, np.int64, len(self.rows))
        strange = np.setdiff1d(ours[ours < blocks[-1]], blocks, assume_unique=True)[most:]
        if not len(strange):
            return
        self.sets["unsummed"].add(strange)
        for block in strange.tolist():
            self.table.free(self.rows.pop(block))
            self.gone.append(block)

    def expect(self, end: int) -> None:
        """Keep sums up to MARGIN messages beyond this end of the spool; a lower one has no effect."""
        summed_end = (max(end, 0) + MARGIN) >> SUM_BITS
        if summed_end > self.summed_end:
            self.summed_end, self.is_changed = summed_end, True

    def count_far(self) -> int:
        """How many blocks beyond `summed_end` have records."""
        return int(self.unsummed.range_cardinality(self.summed_end, 1 << 63))

    def see(self, sequences: Words, is_first: Mask) -> None:
        """Note sequences int64[n > 0], ascending, of which `is_first` bool[n] is clear for second copies.

        Clears it for all that were seen before.
        """
        once = sequences
        if not is_first.all():
            self.sets["twice"].add(np.unique(sequences[~is_first]))
            once = sequences[is_first]
        burst = Numbers()
        burst.add(once)
        if burst.bitmap.intersect(self.seen):
            known = numbers_of(burst.bitmap & self.seen)
            self.sets["twice"].add(known)
            is_first[np.searchsorted(sequences, known)] = False
        self.sets["seen"].add(once)

    def note_due(self, sequences: BitMap64) -> None:
        """From now on these must have been seen."""
        self.sets["due"].merge(sequences)

    def row(self, block: int) -> int:
        """The row of a block in the table; -1 if it is settled."""
        row = self.rows.get(block)
        if row is None:
            if block in self.settled:
                return -1
            row = self.rows[block] = self.table.take(self.number, block)
        return row

    def written(self) -> None:
        """All of it is written."""
        for one in self.sets.values():
            one.parts.clear()
        self.gone.clear()
        self.is_changed = False


def numbers_of(bitmap: BitMap64) -> Words:
    """The numbers in a bitmap, int64[n], ascending; all are below 2^63."""
    return np.frombuffer(bitmap.to_array(), np.int64)
