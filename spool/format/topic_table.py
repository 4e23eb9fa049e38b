"""Topic names by number: a hash table that compiled loops search, and enter new names into.

A reader of segments numbers the names in them as it meets them, without a call of Python per name: the
names follow one another in an arena of bytes. An unbounded table takes 100 bytes and the name for each
distinct name; Spark jobs use it, and read as many names as a segment holds. A command that only looks uses a
table of MAX_TOPICS names (`of_reader`), like a footer; `Batch.topic_name` has every message's own.

The deliverer's table is *bounded*, since anybody may send any name. It gives numbers by these rules:

- A name that Kafka can never have (not [A-Za-z0-9._-]{1,249}, or "." or "..") has the number `illegal`.
- A *stranger*, a name that Kafka has not been seen to have, gets a number while there are fewer strangers
  than half of the table. A name that Kafka has (`welcome`), or that was `add`ed, is no stranger.
- Beyond that, and beyond the table's end, a name has the number `others`, and `refused` counts it.

`keep` takes a stranger in for good, `forget` frees the numbers of strangers.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from spool.format.segment_format import MAX_TOPICS
from spool.native.digest import digest, digest_function
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, address_of, call, copy, load_i64, load_u8, store_i64, store_u8

OTHERS = b"(others)"
"""The name of all names without a number of their own. No Kafka topic can have it."""
ILLEGAL = b"(illegal)"
"""That of all names that no Kafka topic can have, where these share a number."""
_MOST_NAME_BYTES = 1 << 15
LEGAL_BYTES = 249
"""Of a name that a topic of Kafka can have, at most."""
_GROWTH = 2
_LEGAL = re.compile(rb"[A-Za-z0-9._-]{1,249}")
_READERS_CAPACITY = 1 << (2 * MAX_TOPICS + 3).bit_length()
"""With it a reader's table never grows; the kernel provides only the memory that is used."""
_HOME_BITS_AT = 60
"""In a digest, behind all bits that a slot depends on."""
_USED, _COUNT, _END, _MOST, _STRANGERS, _MOST_STRANGERS, _OTHERS, _ILLEGAL, _REFUSED, _FREE = range(10)
"""Words of `Table.words`: names, numbers given, bytes of the arena, and the bounds; -1 for none."""
_AT, _BYTES, _STRANGE, _NEXT_FREE = range(4)
"""Columns of `Table.names`."""
_SLOT_BYTES, _NAME_BYTES = 16, 32


class Table(NamedTuple):
    """A table as kernels take it. Replaced when it grows."""

    slots: npt.NDArray[np.int64]
    """int64[capacity, 2]: the name's digest and its number + 1 (0: free), probed linearly."""
    homes: npt.NDArray[np.uint8]
    """uint8[capacity]: eight bits for the names that belong into a slot, by further bits of their digests.

    A name whose bit is not set is not in the table. That is known without its slot, which a table of many
    names has in no cache.
    """
    seed: int
    words: npt.NDArray[np.int64]
    """int64[10], in the order above."""
    names: npt.NDArray[np.int64]
    """int64[numbers, 4]: offset in the arena, length, whether a stranger, the next free number."""
    arena: npt.NDArray[np.uint8]
    arena_at: Address
    welcome: npt.NDArray[np.int64]
    """Digests of names that Kafka has, sorted."""


@subkernel
def home_bit(hashed: int) -> int:
    """The bit of a name with this digest in Table.homes."""
    return 1 << ((hashed >> _HOME_BITS_AT) & 7)


@kernel
def topic_number(hashed: int, slots: Address, capacity: int, homes: Address) -> int:
    """The number of the topic whose name has this digest; -1: it has none.

    `slots`, `homes`: addresses of those of a Table, which has `capacity` slots.
    """
    at = hashed & (capacity - 1)
    if load_u8(homes + at) & home_bit(hashed) == 0:
        return -1
    while load_i64(slots + _SLOT_BYTES * at + 8) != 0:
        if load_i64(slots + _SLOT_BYTES * at) == hashed:
            return load_i64(slots + _SLOT_BYTES * at + 8) - 1
        at = (at + 1) & (capacity - 1)
    return -1


def legal(name: bytes) -> bool:
    """Whether Kafka could ever have a topic of this name."""
    return _LEGAL.fullmatch(name) is not None and name not in (b".", b"..")


def counted_name(name: bytes) -> bytes:
    """A name as a table of `Topics.of_counter` has it."""
    return name if legal(name) or name == OTHERS else ILLEGAL


@subkernel
def is_legal(name: Address, length: int) -> bool:
    """`legal` of the name at this address."""
    if length < 1 or length > LEGAL_BYTES:
        return False
    dots = 0
    for at in range(length):
        byte = load_u8(name + at)
        letter = (byte | 32) >= 97 and (byte | 32) <= 122
        digit = byte >= 48 and byte <= 57
        if not (letter or digit or byte == 45 or byte == 46 or byte == 95):
            return False
        dots += byte == 46
    return dots != length or length > 2


@subkernel
def _contains(ascending: Address, count: int, value: int) -> bool:
    """Whether `value` is among the `count` int64 at an address."""
    low = 0
    high = count
    while low < high:
        middle = (low + high) >> 1
        if load_i64(ascending + 8 * middle) < value:
            low = middle + 1
        else:
            high = middle
    return low < count and load_i64(ascending + 8 * low) == value


@subkernel
def refuse(words: Address) -> int:
    """The number of a name that is not in the table if that takes no more names; -1: `enter` it.

    `words`: the address of Table.words.
    """
    most = load_i64(words + 8 * _MOST)
    if most < 0 or load_i64(words + 8 * _USED) < most or load_i64(words + 8 * _ILLEGAL) >= 0:
        return -1
    store_i64(words + 8 * _REFUSED, load_i64(words + 8 * _REFUSED) + 1)
    return load_i64(words + 8 * _OTHERS)


@kernel
def enter(
    name: Address,
    length: int,
    digest: int,
    slots: npt.NDArray[np.int64],
    homes: npt.NDArray[np.uint8],
    seed: int,
    words: npt.NDArray[np.int64],
    names: npt.NDArray[np.int64],
    arena: npt.NDArray[np.uint8],
    arena_at: Address,
    welcome: npt.NDArray[np.int64],
) -> int:
    """The number of the name at address `name`, a new one if it has none; -1: `make_room`, and try again.

    `slots` int64[capacity, 2], `homes` uint8[capacity], `seed`, `words` int64[10], `names` int64[numbers, 4],
    `arena` uint8[bytes], `arena_at`, `welcome` int64[n]: the fields of a Table.
    """
    return enter_at(
        name,
        length,
        call(digest, name, length, seed),
        Address(slots.ctypes.data),
        slots.shape[0],
        Address(homes.ctypes.data),
        Address(words.ctypes.data),
        Address(names.ctypes.data),
        names.shape[0],
        arena_at,
        arena.shape[0],
        Address(welcome.ctypes.data),
        welcome.shape[0],
    )


@subkernel
def enter_at(
    name: Address,
    length: int,
    hashed: int,
    slots: Address,
    capacity: int,
    homes: Address,
    words: Address,
    names: Address,
    numbers: int,
    arena: Address,
    arena_bytes: int,
    welcome: Address,
    welcomed: int,
) -> int:
    """The same for a name with this digest, and a table by its addresses and lengths.

    A loop over messages calls this, and `topic_number`: each array that is passed on costs a reference count,
    and all together more than the search.
    """
    home = at = hashed & (capacity - 1)
    slot, strange = slots + _SLOT_BYTES * at, 0
    while load_i64(slot + 8) != 0:
        if load_i64(slot) == hashed:
            return load_i64(slot + 8) - 1
        at = (at + 1) & (capacity - 1)
        slot = slots + _SLOT_BYTES * at
    used, most = words + 8 * _USED, load_i64(words + 8 * _MOST)
    refused, strangers, end = words + 8 * _REFUSED, words + 8 * _STRANGERS, words + 8 * _END
    if most >= 0:
        illegal = load_i64(words + 8 * _ILLEGAL)
        if illegal >= 0 and not is_legal(name, length):
            return illegal
        if not _contains(welcome, welcomed, hashed):
            strange = 1
        full = strange and load_i64(strangers) >= load_i64(words + 8 * _MOST_STRANGERS)
        if load_i64(used) >= most or full:
            store_i64(refused, load_i64(refused) + 1)
            return load_i64(words + 8 * _OTHERS)
    if 2 * (load_i64(used) + 1) > capacity or load_i64(end) + length > arena_bytes:
        return -1
    number, count = load_i64(words + 8 * _FREE), load_i64(words + 8 * _COUNT)
    row = names + _NAME_BYTES * (number if number >= 0 else count)
    if number >= 0:
        store_i64(words + 8 * _FREE, load_i64(row + 8 * _NEXT_FREE))
    elif count < numbers:
        number = count
        store_i64(words + 8 * _COUNT, count + 1)
    else:
        return -1
    copy(arena + load_i64(end), name, length)
    store_i64(row + 8 * _AT, load_i64(end))
    store_i64(row + 8 * _BYTES, length)
    store_i64(row + 8 * _STRANGE, strange)
    store_i64(end, load_i64(end) + length)
    store_i64(used, load_i64(used) + 1)
    store_i64(strangers, load_i64(strangers) + strange)
    store_i64(slot, hashed)
    store_i64(slot + 8, number + 1)
    store_u8(homes + home, load_u8(homes + home) | home_bit(hashed))
    return number


@kernel
def _enter_again(
    rows: npt.NDArray[np.int64], slots: npt.NDArray[np.int64], homes: npt.NDArray[np.uint8]
) -> None:
    """Enter rows int64[n, 2] of other slots in empty `slots` int64[capacity, 2], `homes` uint8[capacity]."""
    mask = slots.shape[0] - 1
    for row in range(rows.shape[0]):
        if rows[row, 1] == 0:
            continue
        at = rows[row, 0] & mask
        homes[at] |= home_bit(rows[row, 0])
        while slots[at, 1] != 0:
            at = (at + 1) & mask
        slots[at, 0] = rows[row, 0]
        slots[at, 1] = rows[row, 1]


@kernel
def _compact(count: int, names: npt.NDArray[np.int64], source: Address, target: Address) -> int:
    """Move the names that are left from one arena into another; returns the bytes that they take there.

    `names` int64[numbers, 4]: Table.names, of which `count` were given. `source`, `target`: addresses of the
    arenas.
    """
    end = 0
    for number in range(count):
        length = names[number, _BYTES]
        copy(target + end, source + names[number, _AT], length)
        names[number, _AT] = end
        end += length
    return end


class Names(Sequence[bytes]):
    """The names by number. One that was forgotten is empty."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    def __len__(self) -> int:
        return int(self._topics.table.words[_COUNT])

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return list(self._some(*at.indices(len(self))))
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(at)
        table = self._topics.table
        start, length, _, _ = table.names[number].tolist()
        return table.arena[start : start + length].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return self._some(0, len(self), 1)

    def _some(self, first: int, end: int, step: int) -> Iterator[bytes]:
        return iter(self._of(self._topics.table.names[first:end:step]))

    def of(self, numbers: npt.NDArray[Any]) -> list[bytes]:
        """The names of these numbers, int[n]."""
        return self._of(self._topics.table.names[numbers])

    def _of(self, rows: npt.NDArray[np.int64]) -> list[bytes]:
        table = self._topics.table
        arena = table.arena[: table.words[_END]].tobytes()
        starts = rows[:, _AT]
        ends = (starts + rows[:, _BYTES]).tolist()
        return [arena[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]


class Topics:
    """Topic names seen so far, numbered from 0.

    Names are told apart by their 64-bit digest alone. A sender that knew the `seed` could make a name with
    the digest of another's, and write to a topic that [access] denies it: so each table has a random seed.
    """

    def __init__(self, most: int | None = None, capacity: int = 4096) -> None:
        """`most`: names in a bounded table; None: as many as come."""
        self.seed = secrets.randbits(63)
        words = np.zeros(10, np.int64)
        words[[_MOST, _OTHERS, _ILLEGAL, _FREE]] = -1
        arena = np.zeros(2 * _MOST_NAME_BYTES + (128 if most is None else 0) * capacity, np.uint8)
        self.table = Table(
            np.zeros((capacity, 2), np.int64),
            np.zeros(capacity, np.uint8),
            self.seed,
            words,
            np.zeros((capacity, 4), np.int64),
            arena,
            address_of(arena),
            np.empty(0, np.int64),
        )
        self.names = Names(self)
        self._digest = digest_function()
        if most is not None:
            self.others, self.illegal = self._reserve(OTHERS), self._reserve(ILLEGAL)
            words[[_MOST, _MOST_STRANGERS, _OTHERS, _ILLEGAL]] = most, most // 2, self.others, self.illegal

    @classmethod
    def of_reader(cls, most: int = MAX_TOPICS) -> Topics:
        """A table for commands that look at anybody's messages: the first `most` names have numbers."""
        topics = cls(capacity=_READERS_CAPACITY)
        topics.bound(most)
        return topics

    @classmethod
    def of_counter(cls, most: int = MAX_TOPICS) -> Topics:
        """A table for counts by topic that are kept: names that Kafka can never have share a number, too."""
        topics = cls.of_reader(most)
        topics.merge_illegal()
        return topics

    def merge_illegal(self) -> None:
        """Give names that Kafka can never have one number, from now on."""
        self.illegal = self.table.words[_ILLEGAL] = self._reserve(ILLEGAL)

    others = illegal = -1
    """The numbers that many names share; -1: there are none."""

    @property
    def refused(self) -> int:
        """How often a name got the number `others`."""
        return int(self.table.words[_REFUSED])

    def close(self) -> int:
        """Take no further names: from now on each gets the number that is returned."""
        self.others = self._reserve(OTHERS)
        self.table.words[[_MOST, _OTHERS]] = 0, self.others
        return self.others

    def bound(self, most: int) -> int:
        """Take at most `most` names of any kind from now on; returns the number of all others."""
        self.others = self._reserve(OTHERS)
        self.table.words[[_MOST, _MOST_STRANGERS, _OTHERS]] = most, most, self.others
        return self.others

    def add(self, name: bytes) -> int:
        """The number of `name`, which is new or already there, and is no stranger. No bound holds for it."""
        words = self.table.words
        most, words[_MOST] = int(words[_MOST]), -1
        number = self.number(name)
        words[_MOST] = most
        self.keep(number)
        return number

    def admit(self, name: bytes) -> int:
        """The number of a name that Kafka has; -1 if the table is full."""
        used, most = self.table.words[[_USED, _MOST]].tolist()
        if 0 <= most <= used and self.find(name) < 0:
            return -1
        return self.add(name)

    def find(self, name: bytes) -> int:
        """The number of a name; -1 if it has none."""
        slots, homes = self.table.slots, self.table.homes
        hashed = int(np.uint64(digest(name, self.seed)).astype(np.int64))
        return int(topic_number(hashed, address_of(slots), len(slots), address_of(homes)))

    def number(self, name: bytes) -> int:
        """The number that a message of this name gets."""
        data = np.frombuffer(name or b"\0", np.uint8)
        while (number := int(enter(address_of(data), len(name), self._digest, *self.table))) < 0:
            self.make_room()
        return number

    def _reserve(self, name: bytes) -> int:
        """A number that no name leads to."""
        self.make_room()
        words, end, data = self.table.words, int(self.table.words[_END]), np.frombuffer(name, np.uint8)
        number = int(words[_COUNT])
        self.table.arena[end : end + len(name)] = data
        self.table.names[number] = end, len(name), 0, -1
        words[[_COUNT, _END]] += 1, len(name)
        return number

    def keep(self, number: int) -> None:
        """Make a topic a stranger no longer."""
        if self.table.names[number, _STRANGE]:
            self.table.names[number, _STRANGE] = 0
            self.table.words[_STRANGERS] -= 1

    def is_strange(self, number: int) -> bool:
        """Whether a topic is a stranger."""
        return bool(self.table.names[number, _STRANGE])

    @property
    def has_many_strangers(self) -> bool:
        """Whether they have a quarter of the places that strangers may have."""
        words = self.table.words
        return bool(0 < words[_MOST_STRANGERS] <= 4 * words[_STRANGERS])

    def strangers(self) -> set[int]:
        """The numbers of all strangers."""
        rows = self.table.names[: int(self.table.words[_COUNT])]
        return set(np.flatnonzero(rows[:, _STRANGE]).tolist())

    def welcome(self, names: Iterable[bytes]) -> None:
        """Set the names that are no strangers when they come."""
        found = np.array([digest(name, self.seed) for name in names], np.uint64).astype(np.int64)
        self.table = self.table._replace(welcome=np.sort(found))

    def forget(self, numbers: Iterable[int]) -> list[bytes]:
        """Free the numbers of strangers, for other names; the names that had them."""
        gone = [number for number in numbers if self.is_strange(number)]
        if not gone:
            return []
        table, names = self.table, self.names.of(np.array(gone))
        for number in gone:
            table.names[number] = 0, 0, 0, table.words[_FREE]
            table.words[_FREE] = number
        table.words[[_USED, _STRANGERS]] -= len(gone)
        left = table.slots[~np.isin(table.slots[:, 1] - 1, gone)]
        slots, arena = np.zeros_like(table.slots), np.zeros_like(table.arena)
        homes = np.zeros_like(table.homes)
        _enter_again(left, slots, homes)
        count = int(table.words[_COUNT])
        table.words[_END] = _compact(count, table.names, table.arena_at, address_of(arena))
        self.table = table._replace(slots=slots, homes=homes, arena=arena, arena_at=address_of(arena))
        return names

    def make_room(self) -> None:
        """Have room for one more name, whatever its length."""
        table = self.table
        used, count, end = table.words[[_USED, _COUNT, _END]].tolist()
        if 2 * (used + 2) > len(table.slots):
            capacity = _GROWTH * len(table.slots)
            slots, homes = np.zeros((capacity, 2), np.int64), np.zeros(capacity, np.uint8)
            _enter_again(table.slots, slots, homes)
            table = table._replace(slots=slots, homes=homes)
        if count + 2 > len(table.names):
            table = table._replace(names=_extended(table.names))
        if end + _MOST_NAME_BYTES > len(table.arena):
            arena = _extended(table.arena)
            table = table._replace(arena=arena, arena_at=address_of(arena))
        self.table = table


def _extended(table: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same with room for more rows."""
    more = np.zeros((_GROWTH * len(table), *table.shape[1:]), table.dtype)
    more[: len(table)] = table
    return more


def compile_kernels() -> None:
    """Compile what makes room in a table."""
    _enter_again(np.zeros((0, 2), np.int64), np.zeros((1, 2), np.int64), np.zeros(1, np.uint8))
    _compact(0, np.zeros((0, 4), np.int64), Address(0), Address(0))
