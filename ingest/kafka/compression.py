r"""The codecs of record batches, decompressed into a given amount of memory, however small the batch is.

Snappy comes in two ways: as one block, and in the blocks of the Java library that Kafka's own client uses:

    blocks := "\x82SNAPPY\x00" version:i32 compatible:i32 block*
    block  := size:i32 the bytes of a snappy block

LZ4 and Zstandard are frames.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cramjam
import numpy as np

from ingest.kafka.record_batch import BadBatch, Wrong

MOST_BYTES = 16 << 20
"""Of the records of a batch: brokers take 1 MiB of it, compressed, by default."""
_JAVA = b"\x82SNAPPY\x00"
_JAVA_HEAD_BYTES = len(_JAVA) + 8
_BLOCK = struct.Struct(">i")
_MOST_BLOCKS = 16_384
"""Of Java's library, which begins another one after 32 KiB."""
_GZIP = 16 + zlib.MAX_WBITS
"""zlib's number for a stream with gzip's head."""


class Decompressor:
    """The codecs, by number, and the memory that they write into."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        """`most`: bytes of the records of a batch."""
        # Of zeros that the kernel gives when they are written to.
        self._scratch = np.zeros(most, np.uint8).data

    def records(self, codec: int, data: memoryview) -> memoryview:
        """The records of a batch. Raises BadBatch for too many bytes, for damage, and an unknown codec."""
        if codec == 0:
            return data
        if codec not in _CODECS:
            raise BadBatch(Wrong.CODEC)
        try:
            used = _CODECS[codec](data, self._scratch)
        except (ValueError, struct.error, zlib.error, cramjam.DecompressionError):
            raise BadBatch(Wrong.UNPACKED) from None
        return memoryview(bytes(self._scratch[:used]))


def _gunzip(data: memoryview, scratch: memoryview) -> int:
    """One stream, as clients write it: many empty ones would cost time, and no bytes."""
    stream = zlib.decompressobj(_GZIP)
    found = stream.decompress(data, len(scratch))
    if not stream.eof or stream.unused_data:
        raise ValueError(len(found))
    scratch[: len(found)] = found
    return len(found)


def _unsnap(data: memoryview, scratch: memoryview) -> int:
    if data[: len(_JAVA)] != _JAVA:
        return cramjam.snappy.decompress_raw_into(data, scratch)
    at, used, blocks = _JAVA_HEAD_BYTES, 0, 0
    if len(data) < at:
        raise ValueError(len(data))
    while at < len(data):
        blocks += 1
        if blocks > _MOST_BLOCKS:
            raise ValueError(blocks)
        (size,) = _BLOCK.unpack_from(data, at)
        at += _BLOCK.size
        if not 0 < size <= len(data) - at:
            raise ValueError(size)
        used += cramjam.snappy.decompress_raw_into(data[at : at + size], scratch[used:])
        at += size
    return used


_CODECS: dict[int, Callable[[memoryview, memoryview], int]] = {
    1: _gunzip,
    2: _unsnap,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}
