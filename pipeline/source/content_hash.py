"""The hash of a message's content (`spool.format.message_hash`), of columns.

`pipeline.audit` has the same as an expression of Spark's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.source.binary import Bytes, Lengths, Offsets, from_binary
from spool.format.message_hash import REPLAY_NAME, SEED, Words, Xxh, hash_bytes, hash_length, hash_word
from spool.native.digest import xxh64_function
from spool.native.kernel import kernel
from spool.native.memory import Address, address_of

Column = tuple[Address, Offsets, Lengths]
"""Bytes of each row: from an address on, the offsets int64[n] and lengths int32[n]; -1 for a null."""


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
    hash_columns((xxh64_function(), address_of(word)), topic, key, value, name, content, own, lists, hashes)
    return pa.array(hashes)


def _column(column: pa.Array) -> tuple[Bytes, Offsets, Lengths]:
    found, at, lengths = from_binary(column)
    return found, at, np.where(np.asarray(column.is_valid()), lengths, -1).astype(np.int32)


@kernel
def hash_columns(  # noqa: PLR0913, PLR0917  (a kernel)
    xxh: Xxh,
    topics: Column,
    keys: Column,
    values: Column,
    names: Column,
    data: Column,
    own: npt.NDArray[np.bool_],
    lists: Offsets,
    hashes: Words,
) -> None:
    """Write the hash of each row to `hashes` int64[rows].

    `names` and `data`: of the headers, of which those of a row are between `lists` int64[rows + 1], and `own`
    bool[headers] says which count.
    """
    for row in range(len(hashes)):
        seed = hash_bytes(xxh, Address(topics[0] + topics[1][row]), topics[2][row], SEED)
        seed = hash_length(xxh, keys[2][row], seed)
        seed = hash_length(xxh, values[2][row], seed)
        seed = hash_bytes(xxh, Address(keys[0] + keys[1][row]), keys[2][row], seed)
        seed = hash_bytes(xxh, Address(values[0] + values[1][row]), values[2][row], seed)
        of_headers, count = SEED, 0
        for at in range(lists[row], lists[row + 1]):
            if own[at]:
                of_headers = hash_length(xxh, data[2][at], of_headers)
                count += 1
        if count:
            for at in range(lists[row], lists[row + 1]):
                if own[at]:
                    of_headers = hash_bytes(xxh, Address(names[0] + names[1][at]), names[2][at], of_headers)
                    of_headers = hash_bytes(xxh, Address(data[0] + data[1][at]), data[2][at], of_headers)
            seed = hash_word(xxh, of_headers, seed)
        hashes[row] = seed
