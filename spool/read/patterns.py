"""Patterns that keys and values of messages are searched for, a batch at a time.

Plain bytes are searched in blocks. A block is compared with four bytes of the text, 64 places at once, and
the few places that agree with the whole text. If many places agree, senders may have made them so: then
the rest of the block goes through an automaton that takes the same time for any bytes. It is bit-parallel
(shift-or) and knows the first 64 bytes of the text. If these are everywhere, and the text is longer, it is
that of Knuth, Morris and Pratt.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from spool.format.batch import Batch
from spool.native.kernel import interprets, kernel
from spool.native.memory import Address, address_of, load_u8, places_of

_AUTOMATON_BYTES, _BLOCK, _BLOCK_TEXTS, _STRIDE = 64, 4096, 8, 64
_WORK, _WARY = 4, 16
"""In a block of n places n / _WORK steps may go to those that seem to agree. If more did, the next _WARY
blocks go through an automaton at once."""
_POSITIVE = (1 << 63) - 1


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
    borders: npt.NDArray[np.int64]
    """int64[length + 1]: where so many bytes agree, and the next does not, how many may agree instead.

    -1: none, and not even that byte with the first.
    """

    @classmethod
    def of(cls, wanted: bytes) -> SearchText:
        """Prepare the search for these bytes, which must not be empty."""
        text, length = np.frombuffer(wanted, np.uint8), len(wanted)
        bits = [1 << at for at in range(_AUTOMATON_BYTES - 1)] + [-(1 << (_AUTOMATON_BYTES - 1))]
        masks = np.full(256, -1, np.int64)
        for bit, byte in zip(bits, wanted, strict=False):
            masks[byte] &= ~bit
        borders = np.zeros(length + 1, np.int64)
        _find_borders(text, borders)
        return cls(text, bits[min(length, _AUTOMATON_BYTES) - 1], masks, borders)

    @property
    def block(self) -> int:
        """Places that are searched at a time."""
        return max(_BLOCK, _BLOCK_TEXTS * len(self.text))


@kernel
def _find_borders(text: npt.NDArray[np.uint8], borders: npt.NDArray[np.int64]) -> None:
    """Fill `borders` int64[n + 1] of `text` uint8[n]: see SearchText."""
    border, length = 0, text.shape[0]
    borders[0] = -1
    for at in range(1, length):
        # A border that is followed by the same byte would differ there, too.
        borders[at] = borders[border] if text[at] == text[border] else border
        while border >= 0 and text[at] != text[border]:
            border = borders[border]
        border += 1
    borders[length] = border


@kernel
def _agreeing(at: Address, text: npt.NDArray[np.uint8]) -> int:
    """How many bytes at an address are the first of `text` uint8[n]."""
    for i in range(text.shape[0]):
        if load_u8(at + i) != text[i]:
            return i
    return text.shape[0]


@kernel
def _filter_block(
    base: Address,
    first: int,
    end: int,
    text: npt.NDArray[np.uint8],
    hits: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Search the places [first, end) with little work: (places searched, hits among them).

    Offsets count from `base`. `text` uint8[n]. `hits` int64[places] receives the offsets.
    """
    length = text.shape[0]
    second, third, fourth = length - 1, length // 3, 2 * length // 3
    one, two, three, four = text[0], text[second], text[third], text[fourth]
    place, found, work = first, 0, (end - first) // _WORK
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
                    hits[found] = place + ahead
                    found += 1
            near = (near >> 1) & _POSITIVE
            ahead += 1
        work -= ahead
        place += _STRIDE
    while place < end and work >= 0:
        if _agreeing(Address(base + place), text) == length:
            hits[found] = place
            found += 1
        place += 1
    return place - first, found


@kernel
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
    `parts` int64[3, places / 4] is scratch; all else is as in `_filter_block`.
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


@kernel
def _keep_whole(
    base: Address, text: npt.NDArray[np.uint8], hits: npt.NDArray[np.int64], found: int, work: int
) -> int:
    """Keep those of the first `found` of `hits` where all of `text` uint8[n] is: how many; -1: much work."""
    kept = 0
    for i in range(found):
        same = _agreeing(Address(base + hits[i]), text)
        work -= same
        if work < 0:
            return -1
        if same == text.shape[0]:
            hits[kept] = hits[i]
            kept += 1
    return kept


@kernel
def _match_borders(
    base: Address,
    first: int,
    end: int,
    text: npt.NDArray[np.uint8],
    borders: npt.NDArray[np.int64],
    hits: npt.NDArray[np.int64],
) -> int:
    """The same for any length: at most two steps a byte. `borders` int64[n + 1]: see SearchText."""
    length, same, found = text.shape[0], 0, 0
    for at in range(first, end + length - 1):
        byte = load_u8(base + at)
        while same >= 0 and text[same] != byte:
            same = borders[same]
        same += 1
        if same == length:
            hits[found] = at - length + 1
            found += 1
            same = borders[same]
    return found


@kernel
def _search(  # noqa: C901, PLR0913, PLR0917  (a kernel)
    base: Address,
    first: int,
    end: int,
    text: npt.NDArray[np.uint8],
    bit: int,
    masks: npt.NDArray[np.int64],
    borders: npt.NDArray[np.int64],
    hits: npt.NDArray[np.int64],
    parts: npt.NDArray[np.int64],
    key_at: npt.NDArray[np.int64],
    key_bytes: npt.NDArray[np.int32],
    value_at: npt.NDArray[np.int64],
    value_bytes: npt.NDArray[np.int32],
    rows: npt.NDArray[np.bool_],
) -> bool:
    """Whether the text is at one of the places [first, end); or, with rows, in which messages it is.

    Offsets count from `base`. `text`, `bit`, `masks`, `borders`: see SearchText. `hits` int64[block] and
    `parts` int64[3, block / 4] are scratch. `rows` bool[messages] receives which messages have it within
    their key (`key_at`, `key_bytes`) or their value (`value_at`, `value_bytes`), all [messages], in order of
    their bytes.
    """
    length, row, wary, repeats = text.shape[0], 0, 0, False
    while first < end:
        last = min(first + hits.shape[0], end)
        searched = found = 0
        if wary == 0:
            searched, found = _filter_block(base, first, last, text, hits)
            # Behind many places that agreed more do so.
            wary = _WARY if first + searched < last else 0
        else:
            wary -= 1
            searched = last - first
            found = -1
            if not repeats:
                found = _match_bits(base, first, last, text[:_AUTOMATON_BYTES], bit, masks, hits, parts)
            if length > _AUTOMATON_BYTES and not repeats:
                found = _keep_whole(base, text, hits, found, searched)
            if found < 0:
                # The beginning of the text is everywhere.
                repeats = True
                found = _match_borders(base, first, last, text, borders, hits)
        if found > 0 and rows.shape[0] == 0:
            return True
        for i in range(found):
            place = hits[i]
            # The value is the end of a datagram.
            while row < rows.shape[0] and place >= value_at[row] + value_bytes[row]:
                row += 1
            if row == rows.shape[0]:
                return True
            behind = place + length
            in_key = key_at[row] <= place and behind <= key_at[row] + key_bytes[row]
            in_value = value_at[row] <= place and behind <= value_at[row] + value_bytes[row]
            rows[row] |= in_key or in_value
        first += searched
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
                self._wanted in batch.value(row) or self._wanted in (batch.key(row) or b"")
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
        hits = [bool(search(batch.key(row) or b"") or search(batch.value(row))) for row in range(len(batch))]
        return np.array(hits, np.bool_)
