"""One tier, as it was seen: a cluster, or another place that records reach.

Records come in bursts of many spools. Only the spools that `watch` names have state; records of others are
counted. A burst is sorted by spool and sequence. Then there is some Python by spool and by block, and none by
record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.witness.seen import BlockTable, Mask, SpoolSeen
from spool.format.block_sums import sum_blocks
from spool.format.message_hash import Words, Xxh, hash_word
from spool.format.segment_format import SUM_BITS
from spool.native.digest import xxh64_function
from spool.native.kernel import kernel
from spool.native.memory import address_of

UNTIMED = -(2**63)
"""The time of a record to which the broker gave its own."""
Fact = str | int | float
Position = tuple[str, int]
"""Topic and partition."""
Places = npt.NDArray[np.int16 | np.int64]
Uuids = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.uint64]
MOST_STRANGERS = 4096
"""Spools that are not watched and that are remembered by name: with more of them, any may be one."""
MOST_NEWS = 1 << 20
"""Records that are kept until the next look at the spools."""
MOST_FAR = 4096
"""Blocks beyond `summed_end` of which a spool may have records: those of more are forgotten."""
_UUID_BYTES = 16
_MIX = 0x9E3779B97F4A7C15
_MOST_SHORT = np.iinfo(np.int16).max
HAS_ALL = "has_all"
"""A fact of a tier: discarded messages are in it, too, as in an archive."""
_BEGIN = "begin:"
_STRANGERS = "strangers"
_FORGOTTEN = "forgotten:"


class Burst(NamedTuple):
    """Records, as `TierState.absorb` takes them."""

    spools: Uuids
    sequences: Words
    contents: Words
    sent_ms: Words

    def where(self, which: Mask | Words) -> Burst:
        """Some of them."""
        return Burst(self.spools[which], self.sequences[which], self.contents[which], self.sent_ms[which])


def begin_of(tier: TierState, spool: str) -> int:
    """The first sequence of a spool that is judged in a tier."""
    return int(tier.facts.get(_BEGIN + spool, 0))


def is_begun(tier: TierState, spool: str) -> bool:
    """Whether `begin_with` said so for this spool."""
    return _BEGIN + spool in tier.facts


def begin_with(tier: TierState, spool: str, sequence: int) -> None:
    """Judge nothing of a spool before this sequence."""
    tier.facts[_BEGIN + spool] = sequence


class TierState:
    """One tier. `number` and `name` name it in the witness."""

    def __init__(self, number: int, name: str, numbers: Iterator[int]) -> None:
        """`numbers`: those of the spools that come."""
        self.number, self.name, self._numbers = number, name, numbers
        self._by_uuid = dict[bytes, SpoolSeen]()
        self._all = list[SpoolSeen]()
        self.table = BlockTable()
        self._finder = _Finder([])
        self._summed_ends = np.empty(0, np.int64)
        self._word = np.zeros(1, np.int64)
        self._news = list[Burst]()
        """Records that are kept until the next `watch`."""
        self._strangers = set[bytes]()
        """Spools that were not watched when records of theirs came."""
        self.positions = dict[Position, int]()
        """The next offset to read, by topic and partition: the reader sets them after `absorb`."""
        self.records = 0
        """Records that `absorb` took, `foreign` and `negative` ones included."""
        self.skipped = 0
        """Offsets that Kafka dropped before they were read: the reader sets it."""
        self.foreign = 0
        """Records of spools that are not watched."""
        self.negative = 0
        """Records of watched spools whose sequence is below 0."""
        self.facts = dict[str, Fact]()
        """Small facts that the reader keeps here."""

    def watch(self, ends: Mapping[str, int]) -> None:
        """Take in the records of these spools, too. By uuid in hex digits: the sequence behind its last.

        A spool stays watched, also after a restart, and its end only rises. Name its end again before it has
        stored seen.MARGIN messages more. A spool whose records came before, and were forgotten, is judged
        from its end on. Raises ValueError for a key that is no uuid.
        """
        for uuid, end in ends.items():
            key = bytes.fromhex(uuid)
            if len(key) != _UUID_BYTES:
                raise ValueError(f"{uuid} is no uuid of 32 hexadecimal digits")
            if key not in self._by_uuid:
                self.add(next(self._numbers), key)
                if key in self._strangers or len(self._strangers) >= MOST_STRANGERS:
                    begin_with(self, uuid, end)
            elif end > int(self.facts.get(_FORGOTTEN + uuid, end)):
                # Among what was forgotten were records of its own.
                begin_with(self, uuid, end)
                del self.facts[_FORGOTTEN + uuid]
            self._by_uuid[key].expect(end)
        self._arrange()
        self.take_news()

    def spool(self, uuid: str) -> SpoolSeen:
        """The spool with this uuid in hexadecimal digits. Raises KeyError if it is not watched."""
        return self._by_uuid[bytes.fromhex(uuid)]

    def spools(self) -> list[str]:
        """The uuids of all watched spools, in hexadecimal digits."""
        return [one.hex() for one in self._by_uuid]

    def add(self, number: int, uuid: bytes) -> SpoolSeen:
        """Add a spool that is not there. Its records count after the next `watch`, or `begin`."""
        spool = self._by_uuid[uuid] = SpoolSeen(number, uuid, self.table)
        self._all.append(spool)
        return spool

    def begin(self, numbers: Iterator[int]) -> None:
        """Watch the spools that were added; `numbers` are those of further ones. All is written by now.

        Raises ValueError for facts that cannot be.
        """
        self._numbers = numbers
        strangers = bytes.fromhex(str(self.facts.get(_STRANGERS, "")))
        self._strangers = {strangers[at : at + _UUID_BYTES] for at in range(0, len(strangers), _UUID_BYTES)}
        self._arrange()
        self.written()

    def _arrange(self) -> None:
        if len(self._finder) != len(self._all):
            self._finder = _Finder([one.uuid for one in self._all])
        self._summed_ends = np.array([one.summed_end for one in self._all], np.int64)

    def absorb(self, spools: Uuids, sequences: Words, contents: Words, sent_ms: Words) -> None:
        """Take in a burst of records, in any order; a sequence may be there twice.

        `spools` uint8[n, 16]: uuids. The others are int64[n]: sequences, the hashes of the contents
        (`spool.format.message_hash`), and milliseconds since the epoch, or UNTIMED. Of the records of one
        sequence only the first one counts in the sums.

        Records of spools that may be new, and those too far from a spool's end for sums, are kept until the
        next `watch`, which may tell of both, or a checkpoint.
        """
        self.records += len(sequences)
        burst = Burst(spools, sequences, contents, sent_ms)
        places = self._finder.places(spools)
        is_news = self._are_new(spools, places) | self._far(places, sequences)
        if is_news.any():
            room = max(0, MOST_NEWS - sum(len(one.sequences) for one in self._news))
            kept = np.flatnonzero(is_news)[:room]
            self._news.append(burst.where(kept))
            is_here = np.ones(len(places), np.bool_)
            is_here[kept] = False
            burst, places = burst.where(is_here), places[is_here]
            if len(kept) == room:
                self._remember(burst.spools[places < 0])
        self._take_in(burst, places)

    def _take_in(self, burst: Burst, places: Places) -> None:
        """Take in records whose spools are at these places, or are strangers."""
        sequences = burst.sequences
        is_known, is_number = places >= 0, sequences >= 0
        is_good = is_known & is_number
        self.foreign += len(places) - int(np.count_nonzero(is_known))
        self.negative += int(np.count_nonzero(is_known & ~is_number))
        is_far = self._far(places, sequences)
        if is_far.any():
            is_good &= ~self._forget(places, sequences, is_far & is_good)
        if not is_good.all():
            burst, places = burst.where(is_good), places[is_good]
        if not len(places):
            return
        order = _order(places, burst.sequences)
        places = places[order]
        columns = [np.ascontiguousarray(one[order]) for one in burst[1:]]
        is_summed = self._see(places, columns[0])
        is_summed &= self._near(places, columns[0] >> SUM_BITS)
        if not is_summed.all():
            places, columns = places[is_summed], [one[is_summed] for one in columns]
        if len(places):
            self._sum(places, *columns)

    def _are_new(self, spools: Uuids, places: Places) -> Mask:
        """Which records are of spools that are neither watched nor known as strangers. bool[n]."""
        is_new = places < 0
        if is_new.any() and len(self._strangers) < MOST_STRANGERS:
            met, which = np.unique(spools[is_new], axis=0, return_inverse=True)
            is_met = np.array([uuid.tobytes() not in self._strangers for uuid in met])
            is_new[is_new] = is_met[which.reshape(-1)]
            return is_new
        return np.zeros(len(places), np.bool_)

    def take_news(self) -> None:
        """Take in the records that were kept: it is known by now whose they are."""
        news, self._news = self._news, []
        for burst in news:
            places = self._finder.places(burst.spools)
            self._remember(burst.spools[places < 0])
            self._take_in(burst, places)

    def _remember(self, spools: Uuids) -> None:
        """Remember the spools among these, which are not watched."""
        room = MOST_STRANGERS - len(self._strangers)
        if not len(spools) or not room:
            return
        met = {uuid.tobytes() for uuid in np.unique(spools, axis=0)} - self._strangers
        if met:
            self._strangers.update(sorted(met)[:room])
            self.facts[_STRANGERS] = b"".join(sorted(self._strangers)).hex()

    def _far(self, places: Places, sequences: Words) -> Mask:
        """Which records are of watched spools, and too far from their ends for sums, bool[n]."""
        is_far = np.zeros(len(places), np.bool_)
        if len(self._summed_ends):
            is_far = (places >= 0) & ((sequences >> SUM_BITS) >= self._summed_ends[places])
        return is_far

    def _forget(self, places: Places, sequences: Words, is_far: Mask) -> Mask:
        """Which far records are forgotten, since their spools have too many such blocks, bool[n].

        Any number may be a stranger's. If it was the spool's own, its end will pass it: `watch` notices.
        """
        is_gone = np.zeros(len(places), np.bool_)
        for place in np.unique(places[is_far]).tolist():
            spool, ours = self._all[place], is_far & (places == place)
            blocks = np.unique(sequences[ours] >> SUM_BITS)
            new = blocks[~np.array([block in spool.unsummed for block in blocks.tolist()], np.bool_)]
            if len(new) <= (room := MOST_FAR - spool.count_far()):
                continue
            gone = ours & np.isin(sequences >> SUM_BITS, new[max(0, room) :])
            is_gone |= gone
            name = _FORGOTTEN + spool.uuid.hex()
            first = int(sequences[gone].min())
            self.facts[name] = min(first, int(self.facts.get(name, first)))
        return is_gone

    def _see(self, places: Places, sequences: Words) -> Mask:
        """Note sequences int64[n > 0], in order: which of them are new, bool[n]."""
        is_start = np.diff(places, prepend=-1) != 0
        is_first = is_start | (np.diff(sequences, prepend=-1) != 0)
        starts = np.flatnonzero(is_start)
        ends = [*starts[1:].tolist(), len(places)]
        for place, start, end in zip(places[starts].tolist(), starts.tolist(), ends, strict=True):
            self._all[place].see(sequences[start:end], is_first[start:end])
        return is_first

    def _near(self, places: Places, blocks: Words) -> Mask:
        """Which records are in blocks that may have sums, bool[n]; notes the other blocks."""
        is_near = blocks < self._summed_ends[places]
        if not is_near.all():
            for place in np.unique(places[~is_near]).tolist():
                far = np.unique(blocks[~is_near & (places == place)])
                self._all[place].sets["unsummed"].add(far)
        return is_near

    def _sum(self, places: Places, sequences: Words, contents: Words, sent_ms: Words) -> None:
        """Add records, int64[n > 0], in order, to the sums of their blocks."""
        words, time_words = np.empty((2, len(places)), np.int64)
        xxh = xxh64_function(), address_of(self._word)
        hash_rows(xxh, sequences, contents, sent_ms, words, time_words)
        is_untimed = sent_ms == UNTIMED
        time_words[is_untimed] = 0
        blocks = sequences >> SUM_BITS
        is_start = (np.diff(places, prepend=-1) != 0) | (np.diff(blocks, prepend=-1) != 0)
        starts = np.flatnonzero(is_start)
        # The blocks of all spools in one row, as if they were of one spool.
        _, sums = sum_blocks((np.cumsum(is_start) - 1) << SUM_BITS, words, time_words)
        untimed = np.add.reduceat(is_untimed.astype(np.int64), starts)
        pairs = zip(places[starts].tolist(), blocks[starts].tolist(), strict=True)
        rows = np.array([self._all[place].row(block) for place, block in pairs], np.int64)
        is_open = rows >= 0
        self.table.add(rows[is_open], sums[is_open], untimed[is_open])

    def written(self) -> None:
        """All of its spools is written."""
        self.table.changed[:] = False
        for one in self._all:
            one.written()

    def __iter__(self) -> Iterator[SpoolSeen]:
        return iter(self._all)


@kernel
def hash_rows(
    xxh: Xxh,
    sequences: Words,
    contents: Words,
    sent_ms: Words,
    words: Words,
    time_words: Words,
) -> None:
    """Write the words of messages whose contents are known by their hash. All are int64[messages]."""
    for row in range(len(sequences)):
        words[row] = hash_word(xxh, sequences[row], contents[row])
        time_words[row] = hash_word(xxh, sent_ms[row], sequences[row])


class _Finder:
    """Finds the place of a uuid in a list of them."""

    def __init__(self, uuids: list[bytes]) -> None:
        self._by_uuid = {uuid: place for place, uuid in enumerate(uuids)}
        halves = _halves(np.frombuffer(b"".join(uuids), np.uint8))
        self._mix, keys = _MIX, _mixed(halves, _MIX)
        while len(np.unique(keys)) < len(keys):
            self._mix += 2
            keys = _mixed(halves, self._mix)
        order = np.argsort(keys)
        self._keys, self._uuids = keys[order], halves[order]
        # NumPy sorts numbers of 16 bits by their digits, several times as fast.
        self._places = order.astype(np.int16 if len(order) <= _MOST_SHORT else np.int64)

    def __len__(self) -> int:
        return len(self._by_uuid)

    def places(self, uuids: Uuids) -> Places:
        """The place of each of uint8[n, 16]; -1 for those that are not in the list."""
        none = self._places.dtype.type(-1)
        if not len(uuids) or not len(self._keys):
            return np.full(len(uuids), none)
        halves = _halves(uuids)
        if (halves == halves[0]).all():
            return np.full(len(uuids), self._by_uuid.get(uuids[0].tobytes(), -1), none.dtype)
        at = np.searchsorted(self._keys, _mixed(halves, self._mix))
        at[at == len(self._keys)] = 0
        return np.where((self._uuids[at] == halves).all(axis=1), self._places[at], none)


def _halves(uuids: Uuids) -> Halves:
    """uint64[n, 2] of n uuids."""
    return np.ascontiguousarray(uuids).view(np.uint64).reshape(-1, 2)


def _mixed(halves: Halves, mix: int) -> Halves:
    """One number of each uuid, uint64[n]."""
    return halves[:, 0] ^ (halves[:, 1] * np.uint64(mix))


def _order(places: Places, sequences: Words) -> Words | slice:
    """The index that sorts records by place and sequence; equal ones stay as they are."""
    is_one = bool((places == places[0]).all())
    if bool((sequences[1:] >= sequences[:-1]).all()):
        return slice(None) if is_one else np.argsort(places, kind="stable")
    order = np.argsort(sequences, kind="stable")
    return order if is_one else order[np.argsort(places[order], kind="stable")]
