"""Arrow back to the columns in which messages travel: whole columns at a time, no Python object for a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spool.record import Batch, Topics

NOWHERE = -1
"""The partition of a message whose topic has none."""
Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int32]


def to_batch(columns: dict[str, pa.Array], topics: Topics) -> Batch:
    """Messages from their columns, named as in `pipeline.schema`; names are added to `topics`.

    It needs sequence and topic, and takes what there is of partition_key, key, value and timestamp_ms. Of
    the rest the batch has zeros.
    """
    rows = len(columns["sequence"])
    none = pa.nulls(rows, pa.binary())
    keys, key_at, key_bytes = _binary(columns.get("key", none))
    values, value_at, value_bytes = _binary(columns.get("value", none))
    partition_key = columns.get("partition_key", pa.nulls(rows, pa.int32()))
    zeros = np.zeros(rows, np.int64)
    return Batch(
        data=np.concatenate([keys, values]),
        topics=topics,
        sequence=integers(columns["sequence"]),
        topic=number_names(columns["topic"], topics),
        keyed=np.asarray(partition_key.is_valid()),
        partition_key=integers(partition_key).astype(np.int32),
        timestamp=integers(columns["timestamp_ms"]) if "timestamp_ms" in columns else zeros,
        key_at=key_at,
        key_bytes=key_bytes,
        value_at=value_at + len(keys),
        value_bytes=value_bytes,
        datagram_at=zeros,
        datagram_bytes=zeros.astype(np.int32),
        received_ns=zeros,
        uid=zeros.astype(np.uint32),
        pid=zeros.astype(np.uint32),
    )


def integers(column: pa.Array) -> npt.NDArray[np.int64]:
    """Numbers as int64, writable; nulls as 0."""
    return np.array(column.fill_null(0), np.int64)


def number_names(column: pa.Array, topics: Topics) -> npt.NDArray[np.int32]:
    """The number in `topics` of each row's name."""
    encoded: Any = column.dictionary_encode()
    numbers = [topics.add(name.encode()) for name in encoded.dictionary.to_pylist()]
    return np.array(numbers, np.int32)[np.asarray(encoded.indices)]


def _binary(column: pa.Array) -> tuple[Bytes, Offsets, Lengths]:
    """(bytes, where each row's begin, how many they are); a null has none."""
    if len(column) == 0:
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int32)
    _, places, data = column.cast(pa.binary()).buffers()
    offsets = np.frombuffer(places, np.int32)[column.offset : column.offset + len(column) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    held = np.empty(0, np.uint8) if last == first else np.frombuffer(data, np.uint8)[first:last]
    lengths = np.where(np.asarray(column.is_valid()), np.diff(offsets), 0).astype(np.int32)
    return held, offsets[:-1].astype(np.int64) - first, lengths
