"""Patterns that keys and values of messages are searched for, a batch at a time.

Plain bytes are compared with four bytes of the text, 64 places at once, and the few places that agree with
the whole text. If many places agree, senders may have made them so: then the next blocks are searched in a
time that is the same for any bytes. For up to 64 bytes that is an automaton, bit-parallel (shift-or). For
more it is the rolling hash of Rabin and Karp, over words of 8 bytes: it has a step for each 8th place, where
a text that began up to 7 bytes before has one of 8 hashes. Its factors are random, so senders cannot make
bytes that have the hash and are not the text.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from spool.format.batch import Batch
from spool.native.kernel import interprets, kernel, subkernel
from spool.native.memory import Address, address_of, load_i64, load_u8, places_of

_AUTOMATON_BYTES, _BLOCK, _BLOCK_TEXTS, _STRIDE = 64, 4096, 8, 64
_WORK, _WARY = 4, 16
"""Of n places n / _WORK steps may go to those that seem to agree, or those of a block at a time. If more did,
the next _WARY blocks are searched in the other way."""
_POSITIVE = (1 << 63) - 1
_WORD = 8
_PRIME_BITS, _WORD_SHIFT = 31, 33
_PRIME = (1 << _PRIME_BITS) - 1
"""Hashes are modulo this one."""
_OF_WORD, _OF_HASH, _OF_GONE, _FIRST, _LAST, _LAST_BUT_ONE = range(6)


class Pattern(Protocol):
    """A pattern to search for."""

    def may_lie_in(self, data: npt.NDArray[np.uint8]) -> bool:
        """Whether messages in these bytes can match, before they are decoded."""

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """bool[rows]: which messages match in their key or their value."""


class SearchText(NamedTuple):
    """Bytes that are searched for, as kernels take them."""

    text: npt.NDArray[np.uint8]
    bit: int
    """Of the last byte in the masks."""
    masks: npt.NDArray[np.int64]
    """int64[256]: by byte, a bit for each of the first 64 places; 0: the text has this byte there."""
    rolling: npt.NDArray[np.int64]
    """int64[6]: factors of a word, of the hash in a step, of the word that leaves it; the first 8 bytes of
    the text and its last 16, which the words may miss. Zeros for a text of at most 64 bytes."""
    hashes: npt.NDArray[np.int64]
    """int64[8]: of the words that begin at the text's first to 8th byte, as many of them as all have."""

    @classmethod
    def of(cls, wanted: bytes) -> SearchText:
        """Prepare the search for these bytes, which must not be empty."""
        text, length = np.frombuffer(wanted, np.uint8), len(wanted)
        bits = [1 << at for at in range(_AUTOMATON_BYTES - 1)] + [-(1 << (_AUTOMATON_BYTES - 1))]
        masks = np.full(256, -1, np.int64)
        for bit, byte in zip(bits, wanted, strict=False):
            masks[byte] &= ~bit
        rolling, hashes = np.zeros(6, np.int64), np.zeros(_WORD, np.int64)
        if length > _AUTOMATON_BYTES:
            words, factor = _words_of(length), 1 + secrets.randbelow(_PRIME - 1)
            rolling[:] = (
                secrets.randbits(63) | 1,
                factor,
                _PRIME - pow(factor, words, _PRIME),
                *np.frombuffer(wanted[:_WORD] + wanted[-_WORD:] + wanted[-2 * _WORD : -_WORD], np.int64),
            )
            hashes[:] = [_hash(Address(address_of(text) + at), words, rolling) for at in range(_WORD)]
        return cls(text, bits[min(length, _AUTOMATON_BYTES) - 1], masks, rolling, hashes)

    @property
    def block(self) -> int:
        """Places that are searched at a time."""
        return max(_BLOCK, _BLOCK_TEXTS * len(self.text))


def _words_of(length: int) -> int:
    """Words within a text of so many bytes, wherever in its first 8 bytes they begin."""
    return (length - _WORD + 1) // _WORD


@subkernel
def _reduce(number: int) -> int:
    """A number below 2**62, modulo _PRIME."""
    number = (number & _PRIME) + (number >> _PRIME_BITS)
    number = (number & _PRIME) + (number >> _PRIME_BITS)
    return number - _PRIME if number >= _PRIME else number


@subkernel
def _hash_word(at: Address, rolling: npt.NDArray[np.int64]) -> int:
    """The hash of 8 bytes, 31 bits: multiply-shift, of Dietzfelbinger and others."""
    return ((load_i64(at) * rolling[_OF_WORD]) >> _WORD_SHIFT) & _PRIME


@kernel
def _hash(at: Address, words: int, rolling: npt.NDArray[np.int64]) -> int:
    """The hash of so many words at an address."""
    found = 0
    for word in range(words):
        found = _reduce(found * rolling[_OF_HASH] + _hash_word(Address(at + word * _WORD), rolling))
    return found


@subkernel
def _agreeing(at: Address, text: npt.NDArray[np.uint8]) -> int:
    """How many bytes at an address are the first of `text` uint8[n]."""
    for i in range(text.shape[0]):
        if load_u8(at + i) != text[i]:
            return i
    return text.shape[0]


@subkernel
def _filter(
    base: Address, first: int, end: int, text: npt.NDArray[np.uint8], work: int
) -> tuple[int, int, int]:
    """Search the places [first, end) up to a hit: (where to go on, the hit or -1, what is left of `work`).

    Offsets count from `base`. `text` uint8[n]. With less than no work left it ends before `end`.
    """
    length = text.shape[0]
    second, third, fourth = length - 1, length // 3, 2 * length // 3
    one, two, three, four = text[0], text[second], text[third], text[fourth]
    place = first
    while place + _STRIDE <= end and work >= 0:
        at = Address(base + place)
        near = places_of(at, one) & places_of(Address(at + second), two)
        if near != 0:
            near &= places_of(Address(at + third), three) & places_of(Address(at + fourth), four)
        ahead = 0
        while near != 0:
            if near & 1 != 0:
                same = _agreeing(Address(at + ahead), text)
                work -= same
                if same == length:
                    return place + ahead + 1, place + ahead, work - ahead
            near = (near >> 1) & _POSITIVE
            ahead += 1
        work -= ahead
        place += _STRIDE
    while place < end and work >= 0:
        same = _agreeing(Address(base + place), text)
        work -= same
        if same == length:
            return place + 1, place, work
        place += 1
    return place, -1, work


@subkernel
def _match_bits(  # noqa: C901, PLR0913, PLR0917  (a kernel: each array that is passed on costs time)
    base: Address,
    first: int,
    end: int,
    text: npt.NDArray[np.uint8],
    bit: int,
    masks: npt.NDArray[np.int64],
    hits: npt.NDArray[np.int64],
    parts: npt.NDArray[np.int64],
) -> int:
    """Search the places [first, end) for at most 64 bytes, in a time that depends on no byte: the hits.

    Four quarters at once: each step of one waits for the step before it. `bit`, `masks`: see SearchText.
    `parts` int64[3, places / 4] is scratch. `hits` int64[places] receives them, as
    offsets from `base`.
    """
    length, quarter = text.shape[0], (end - first) >> 2
    a, b, c, d = -1, -1, -1, -1
    in_a, in_b, in_c, in_d = 0, 0, 0, 0
    at = base + first
    for step in range(quarter + length - 1 if quarter else 0):
        a = (a << 1) | masks[load_u8(at + step)]
        b = (b << 1) | masks[load_u8(at + quarter + step)]
        c = (c << 1) | masks[load_u8(at + 2 * quarter + step)]
        d = (d << 1) | masks[load_u8(at + 3 * quarter + step)]
        if a & b & c & d & bit == 0:
            place = first + step - length + 1
            if a & bit == 0:
                hits[in_a] = place
                in_a += 1
            if b & bit == 0:
                parts[0, in_b] = place + quarter
                in_b += 1
            if c & bit == 0:
                parts[1, in_c] = place + 2 * quarter
                in_c += 1
            if d & bit == 0:
                parts[2, in_d] = place + 3 * quarter
                in_d += 1
    found = in_a
    for i in range(in_b):
        hits[found + i] = parts[0, i]
    found += in_b
    for i in range(in_c):
        hits[found + i] = parts[1, i]
    found += in_c
    for i in range(in_d):
        hits[found + i] = parts[2, i]
    found += in_d
    for place in range(first + 4 * quarter, end):
        if _agreeing(Address(base + place), text) == length:
            hits[found] = place
            found += 1
    return found


@subkernel
def _match_hashes(  # noqa: PLR0913, PLR0917  (a kernel)
    base: Address,
    first: int,
    end: int,
    length: int,
    rolling: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.int64],
    hits: npt.NDArray[np.int64],
) -> int:
    """The same for `length` bytes, more than 64: places that have a hash, and both ends of the text.

    `rolling`, `hashes`: see SearchText.
    """
    found, among, words = 0, 0, (length - _WORD + 1) // _WORD
    for ahead in range(_WORD):
        among |= 1 << (hashes[ahead] & 63)
    at, end_at = Address(base + first), base + end
    here = _hash(at, words, rolling)
    while at < end_at + _WORD - 1:
        if among >> (here & 63) & 1 != 0:
            for ahead in range(_WORD - 1, -1, -1):
                begin = Address(at - ahead)
                if (
                    here == hashes[ahead]
                    and base + first <= begin < end_at
                    and load_i64(begin) == rolling[_FIRST]
                    and load_i64(Address(begin + length - _WORD)) == rolling[_LAST]
                    and load_i64(Address(begin + length - 2 * _WORD)) == rolling[_LAST_BUT_ONE]
                ):
                    hits[found] = begin - base
                    found += 1
        gone, at = _hash_word(at, rolling), Address(at + _WORD)
        if at < end_at + _WORD - 1:
            new = _hash_word(Address(at + (words - 1) * _WORD), rolling)
            here = _reduce(here * rolling[_OF_HASH] + new + _reduce(gone * rolling[_OF_GONE]))
    return found


@kernel
def _search(  # noqa: C901, PLR0913, PLR0917  (a kernel)
    base: Address,
    first: int,
    end: int,
    text: npt.NDArray[np.uint8],
    bit: int,
    masks: npt.NDArray[np.int64],
    rolling: npt.NDArray[np.int64],
    hashes: npt.NDArray[np.int64],
    hits: npt.NDArray[np.int64],
    parts: npt.NDArray[np.int64],
    key_at: npt.NDArray[np.int64],
    key_bytes: npt.NDArray[np.int32],
    value_at: npt.NDArray[np.int64],
    value_bytes: npt.NDArray[np.int32],
    rows: npt.NDArray[np.bool_],
) -> bool:
    """Whether the text is at one of the places [first, end); or, with rows, in which messages it is.

    Offsets count from `base`. `text` to `hashes`: see SearchText. `hits` int64[block] and
    `parts` int64[3, block / 4] are scratch. `rows` bool[messages] receives which messages have it within
    their key (`key_at`, `key_bytes`) or their value (`value_at`, `value_bytes`), all [messages], in order of
    their bytes.
    """
    length, row, wary, settled = text.shape[0], 0, 0, first
    most = work = hits.shape[0] // _WORK
    while first < end:
        last = min(first + hits.shape[0], end)
        if wary == 0:
            there, hits[0], work = _filter(base, first, last, text, work)
            found = int(hits[0] >= 0)
            if work < 0:
                # Behind many places that agreed more do so.
                wary, work = _WARY, most
        else:
            wary, there = wary - 1, last
            if length > _AUTOMATON_BYTES:
                found = _match_hashes(base, first, last, length, rolling, hashes, hits)
            else:
                found = _match_bits(base, first, last, text, bit, masks, hits, parts)
        for i in range(found):
            place = hits[i]
            if place < settled:
                continue
            # The value is the end of a datagram.
            while row < rows.shape[0] and place >= value_at[row] + value_bytes[row]:
                row += 1
            if row == rows.shape[0]:
                if row > 0 or _agreeing(Address(base + place), text) == length:
                    return True
                continue
            behind = place + length
            in_key = key_at[row] <= place and behind <= key_at[row] + key_bytes[row]
            in_value = value_at[row] <= place and behind <= value_at[row] + value_bytes[row]
            if (in_key or in_value) and _agreeing(Address(base + place), text) == length:
                # However often a message has the text, one place is enough.
                rows[row], settled = True, value_at[row] + value_bytes[row]
                work += length
        there = max(there, settled)
        first, work = there, min(most, work + (there - first) // _WORK)
    return False


class Plain:
    """Literal bytes: the whole batch is searched at once."""

    def __init__(self, wanted: bytes) -> None:
        """`wanted` must not be empty."""
        self._wanted, self._text = wanted, SearchText.of(wanted)

    def may_lie_in(self, data: npt.NDArray[np.uint8]) -> bool:
        """Whether the bytes occur, even across two messages."""
        if interprets():
            return self._wanted in data.tobytes()
        none, lengths = np.empty(0, np.int64), np.empty(0, np.int32)
        return self._search(
            address_of(data), 0, len(data), none, lengths, none, lengths, np.empty(0, np.bool_)
        )

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """A hit counts when it is within one key, or within one value."""
        if interprets():
            hits = [
                self._wanted in (batch.value(row) or b"") or self._wanted in (batch.key(row) or b"")
                for row in range(len(batch))
            ]
            return np.array(hits, np.bool_)
        found = np.zeros(len(batch), np.bool_)
        if len(batch):
            begin, end = int(batch.datagram_at[0]), int(batch.datagram_at[-1] + batch.datagram_bytes[-1])
            columns = batch.key_at, batch.key_bytes, batch.value_at, batch.value_bytes
            self._search(batch.data_at, begin, end, *columns, found)
        return found

    def _search(self, base: Address, first: int, end: int, *rest: npt.NDArray[Any]) -> bool:
        block, places = self._text.block, end - len(self._wanted) + 1
        scratch = np.empty(block, np.int64), np.empty((3, block >> 2), np.int64)
        return bool(_search(base, first, places, *self._text, *scratch, *rest))


class Regex:
    """A regular expression over bytes, tried on each key and each value."""

    def __init__(self, expression: bytes) -> None:
        """Raises re.error."""
        self._expression = re.compile(expression, re.DOTALL)

    def may_lie_in(self, data: npt.NDArray[np.uint8]) -> bool:  # noqa: ARG002
        """Always: only a key or a value can tell."""
        return True

    def rows(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """One call a message: an anchor means the beginning or the end of a key or of a value."""
        search = self._expression.search
        texts = ((batch.key(row) or b"", batch.value(row) or b"") for row in range(len(batch)))
        return np.array([bool(search(key) or search(value)) for key, value in texts], np.bool_)


def compile_kernels() -> None:
    """Compile the search, also for a text that is hashed."""
    Plain(bytes(2 * _AUTOMATON_BYTES)).may_lie_in(np.zeros(1, np.uint8))
