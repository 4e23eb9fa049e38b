"""The hash of a message's content: topic, key, value and headers, but for those that a replay adds.

It is XXH64 (github.com/Cyan4973/xxHash, as the xxhash wheel carries it) in the way of Spark's `xxhash64`: the
hash of each field is the seed of the next, the first seed is 42, a null leaves the seed as it is, and numbers
are hashed as their bytes, little-endian. `pipeline.audit` has the same as an expression of Spark's:

    xxhash64(topic, length of the key, length of the value, key, value, H)
    H: xxhash64(length of each header's value, each header's name and value); null without headers

A length is 32 bits, and -1 for a null; the hash is 64 bits, signed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch.header_names import REPLAY_NAME
from pipeline.source.binary import Bytes, Lengths, Offsets, from_binary
from spool.native.digest import xxh64_function
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, address_of, call

SEED = 42
Column = tuple[Address, Offsets, Lengths]
"""Bytes of each row: from an address on, the offsets int64[n] and lengths int32[n]; -1 for a null."""
Words = npt.NDArray[np.int64]


def hash_contents(topics: pa.Array, keys: pa.Array, values: pa.Array, headers: pa.Array) -> pa.Array:
    """int64[rows], of columns as `fields.STORED` and `fields.RECORDS` have them; no topic is null."""
    rows = len(topics)
    pairs = headers.flatten()
    names, data = pairs.field("key"), pairs.field("value")
    own = np.asarray(pc.not_equal(names, REPLAY_NAME.decode()).fill_null(True))
    lists = np.append(0, np.cumsum(np.asarray(headers.value_lengths().fill_null(0), np.int64)))
    hashes, word = np.empty(rows, np.int64), np.empty(1, np.int64)
    # Held until the loop is over: it knows their addresses only.
    held = [_column(one) for one in (topics, keys, values, names, data)]
    topic, key, value, name, content = ((address_of(one), at, lengths) for one, at, lengths in held)
    function, word_at = xxh64_function(), address_of(word)
    hash_rows(function, topic, key, value, name, content, own, lists, word, word_at, hashes)
    return pa.array(hashes)


def _column(column: pa.Array) -> tuple[Bytes, Offsets, Lengths]:
    found, at, lengths = from_binary(column)
    return found, at, np.where(np.asarray(column.is_valid()), lengths, -1).astype(np.int32)


@kernel
def hash_rows(  # noqa: PLR0913, PLR0917  (a kernel)
    function: int,
    topics: Column,
    keys: Column,
    values: Column,
    names: Column,
    data: Column,
    own: npt.NDArray[np.bool_],
    lists: Offsets,
    word: Words,
    word_at: Address,
    hashes: Words,
) -> None:
    """Write the hash of each row to `hashes` int64[rows].

    `function`: XXH64's address. `names` and `data`: of the headers, of which those of a row are between
    `lists` int64[rows + 1], and `own` bool[headers] says which count. `word` int64[1], at `word_at`, is
    scratch.
    """
    for row in range(len(hashes)):
        seed = hash_bytes(function, topics, row, SEED)
        seed = hash_length(function, keys, row, word, word_at, seed)
        seed = hash_length(function, values, row, word, word_at, seed)
        seed = hash_bytes(function, keys, row, seed)
        seed = hash_bytes(function, values, row, seed)
        of_headers, count = SEED, 0
        for at in range(lists[row], lists[row + 1]):
            if own[at]:
                of_headers = hash_length(function, data, at, word, word_at, of_headers)
                count += 1
        if count:
            for at in range(lists[row], lists[row + 1]):
                if own[at]:
                    of_headers = hash_bytes(function, names, at, of_headers)
                    of_headers = hash_bytes(function, data, at, of_headers)
            word[0] = of_headers
            seed = call(function, word_at, 8, seed)
        hashes[row] = seed


@subkernel
def hash_bytes(function: int, column: Column, row: int, seed: int) -> int:
    """The hash of a row's bytes; the seed of a null."""
    base, at, lengths = column
    return seed if lengths[row] < 0 else call(function, Address(base + at[row]), lengths[row], seed)


@subkernel
def hash_length(function: int, column: Column, row: int, word: Words, word_at: Address, seed: int) -> int:
    """The hash of the length of a row's bytes; -1 for a null."""
    word[0] = column[2][row]
    return call(function, word_at, 4, seed)
