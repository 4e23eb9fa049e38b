"""Packed segments: a sealed segment, its frames compressed, under the name that it had.

    packed := head header block* footer
    head   := magic:8s="brucezst" version:u32=1 zeros[52]
    header := as in the segment it was made of (spool.format)
    block  := packed_bytes:u32 plain_bytes:u32 zstd[packed_bytes]
    footer := as in the segment it was made of

Little-endian. The blocks hold, one after the other, what stood between header and footer; each of them holds
1 MiB, the last one what is left, and is one frame of zstd with a checksum. So a damaged block loses itself
only.

Header and footer are as they were: who wants only these reads a few hundred bytes. Who wants the messages
gets a descriptor of the segment as it was (`open_plain`), in memory: every reader works on either kind, and a
packed segment has the marks, the identity and the offsets of the one it was made of.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from spool.compression import MAGIC as ZSTD
from spool.compression import compress, decompress
from spool.disk import open_to_read, read_at, write_at
from spool.errors import BadSpool, UnknownVersion
from spool.format import (
    FOOTER_TAIL,
    HEADER_BYTES,
    Record,
    decode_footer,
    decode_header,
    footer_bytes,
)

MAGIC = b"brucezst"
VERSION = 1
BLOCK_BYTES = _MOST_PLAIN = 1 << 20
_HEAD = struct.Struct("<8sI52x")
_BLOCK = struct.Struct("<II")
_FIRST = _HEAD.size + HEADER_BYTES
_LEAST_PACKED = 32
"""A block of nothing but zeros takes more."""
_MOST_PACKED = _MOST_PLAIN + (_MOST_PLAIN >> 6) + 1024
"""A block that does not compress grows by less."""


def is_packed(fd: int, where: object = "a segment") -> bool:
    """Whether a segment file is packed; also when its first bytes are damaged.

    `where` names the file. Raises UnknownVersion.
    """
    head = read_at(fd, _HEAD.size, 0)
    if len(head) == _HEAD.size and head.startswith(MAGIC):
        if (version := _HEAD.unpack(head)[1]) != VERSION:
            raise UnknownVersion(
                f"{where} is packed in version {version}, and this release knows {VERSION}: use a newer one"
            )
        return True
    return read_at(fd, len(ZSTD), _FIRST + _BLOCK.size) == ZSTD


def has_damaged_head(fd: int) -> bool:
    """Whether a segment is known as packed by its first block alone. Raises UnknownVersion."""
    return is_packed(fd) and read_at(fd, len(MAGIC), 0) != MAGIC


def header_at(fd: int, where: object = "a segment") -> int:
    """Where the header of a segment stands in its file, packed or not. Raises UnknownVersion."""
    return _HEAD.size if is_packed(fd, where) else 0


def header_of(fd: int, where: object) -> Record:
    """The header of a segment, packed or not. Raises BadSpool, UnknownVersion, OSError."""
    return decode_header(read_at(fd, HEADER_BYTES, header_at(fd, where)), where)


def open_plain(path: Path, *, links: bool = False) -> int:
    """A descriptor of a segment as it was before it was packed; of the file itself when it is not.

    What is damaged in a packed one reads as zeros. Raises ReadFailed, OSError, UnknownVersion.
    """
    fd = open_to_read(path, links=links)
    try:
        if not is_packed(fd, path):
            plain, fd = fd, -1
            return plain
        return _unpack(fd, path.name)
    finally:
        if fd >= 0:
            os.close(fd)


def _unpack(fd: int, name: str) -> int:
    plain = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        write_at(plain, read_at(fd, HEADER_BYTES, _HEAD.size), 0)
        at = HEADER_BYTES
        for size, data in _blocks(fd):
            if data is not None:
                write_at(plain, data, at)
            at += size
        footer = _footer(fd)
        if (fields := decode_footer(footer)) and fields[0]["end"] <= _most_plain(fd):
            # Also behind a length that is damaged, and hides what follows; but over no frames.
            at = max(at, int(fields[0]["end"]))
        os.ftruncate(plain, at)
        write_at(plain, footer, at)
    except BaseException:
        os.close(plain)
        raise
    return plain


def _most_plain(fd: int) -> int:
    """Bytes that a packed file can stand for, at most: what says that there are more is not believed."""
    return HEADER_BYTES + (os.fstat(fd).st_size // _LEAST_PACKED + 1) * _MOST_PLAIN


def _blocks(fd: int) -> Iterator[tuple[int, bytes | None]]:
    """(plain bytes, what they are) of each block; None for a damaged one. A damaged length ends them."""
    at, end = _FIRST, os.fstat(fd).st_size - len(_footer(fd))
    while at + _BLOCK.size <= end:
        packed_bytes, plain_bytes = _BLOCK.unpack(read_at(fd, _BLOCK.size, at))
        at += _BLOCK.size
        if not (0 < plain_bytes <= _MOST_PLAIN and packed_bytes <= min(_MOST_PACKED, end - at)):
            return
        yield plain_bytes, decompress(read_at(fd, packed_bytes, at), plain_bytes)
        at += packed_bytes


def _footer(fd: int) -> bytes:
    """The bytes of the footer; none when it is damaged."""
    size = os.fstat(fd).st_size
    length = footer_bytes(read_at(fd, FOOTER_TAIL.itemsize, max(0, size - FOOTER_TAIL.itemsize)))
    return read_at(fd, length, size - length) if 0 < length <= size else b""


def pack(source: int, target: int) -> None:
    """Write the sealed segment `source`, packed, to the empty file `target`, and read it back.

    Raises BadSpool when it is not sealed, or what was read back is not what was written; OSError.
    """
    footer = _footer(source)
    end = os.fstat(source).st_size - len(footer)
    if not footer:
        raise BadSpool("it is not sealed")
    write_at(target, _HEAD.pack(MAGIC, VERSION) + read_at(source, HEADER_BYTES, 0), 0)
    at = _FIRST
    for start in range(HEADER_BYTES, end, BLOCK_BYTES):
        plain = read_at(source, min(BLOCK_BYTES, end - start), start)
        packed = compress(plain)
        write_at(target, _BLOCK.pack(len(packed), len(plain)) + packed, at)
        at += _BLOCK.size + len(packed)
    write_at(target, footer, at)
    read = HEADER_BYTES
    for size, data in _blocks(target):
        if data is None or data != read_at(source, size, read):
            break
        read += size
    if read != end:
        raise BadSpool(f"what was packed does not read back at byte {read}")
