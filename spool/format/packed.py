"""Packed segments: a sealed segment, its frames compressed, under the name that it had.

    packed := head header block* footer
    head   := magic:8s="brucezst" version:u32=2 zeros[52]
    header := as in the segment it was made of (spool.format.segment_format)
    block  := packed_bytes:u32 plain_bytes:u32 check:u64 zstd[packed_bytes]
    footer := as in the segment it was made of

Little-endian. The blocks hold, one after the other, the bytes between header and footer; each of them holds
1 MiB, the last one the rest, and is one frame of zstd with a checksum. `check` is the xxh3 of both lengths
and of the packed bytes, seeded with the segment's key XOR the offset of the block's bytes in the segment: a
sender cannot make bytes that pass for a block. A damaged block loses only itself; a damaged length
loses all behind it. Blocks of version 1 have no check.

Header and footer are as they were: a reader that wants only these reads a few hundred bytes. A reader of
messages gets a descriptor of the segment as it was (`open_plain`), in memory: every reader works on either
kind, and a packed segment has the marks, the identity and the offsets of the one it was made of. A segment of
more than 256 MiB is not packed; behind as many unpacked bytes the rest counts as damaged.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import zstandard

from spool.errors import BadSpool, NotAFile, ReadFailed, UnknownVersion
from spool.format.segment_format import (
    FOOTER,
    FOOTER_TAIL,
    HEADER_BYTES,
    MOST_FOOTER_BYTES,
    OLD_KEYS,
    Keys,
    Record,
    decode_footer,
    decode_header,
    footer_bytes,
    keys_of,
    most_footer_bytes,
    unsigned,
)
from spool.format.segment_format import MAGIC as PLAIN
from spool.native.digest import digest
from spool.storage.disk import open_to_read, read_at, write_at
from spool.storage.parallel import Weights

MAGIC = b"brucezst"
VERSION = 2
BLOCK_BYTES = _MOST_PLAIN = 1 << 20
MOST_BYTES = 256 << 20
"""Most bytes of a segment to pack or unpack, without its footer."""
_HEAD = struct.Struct("<8sI52x")
_LENGTHS = struct.Struct("<II")
_CHECKED = struct.Struct("<IIQ")
_FIRST = _HEAD.size + HEADER_BYTES
_MOST_PACKED = _MOST_PLAIN + (_MOST_PLAIN >> 6) + 1024
"""A block that does not compress grows by less."""


def is_packed(fd: int, where: object = "a segment") -> bool:
    """Whether a segment file is packed; also when its first bytes are damaged.

    `where` names the file. Raises UnknownVersion.
    """
    head = read_at(fd, _HEAD.size, 0)
    if len(head) == _HEAD.size and head.startswith(MAGIC):
        if (version := _HEAD.unpack(head)[1]) > VERSION:
            raise UnknownVersion(
                f"{where} is packed in version {version}, and this release knows {VERSION}: use a newer one"
            )
        return True
    return not head.startswith(PLAIN) and _version_by_block(fd) > 0


def _version_by_block(fd: int) -> int:
    """The version of the first block, by where its zstd begins; 0 without a block."""
    begins = (read_at(fd, len(ZSTD), _FIRST + head.size) == ZSTD for head in (_LENGTHS, _CHECKED))
    return next((version for version, found in enumerate(begins, 1) if found), 0)


def has_damaged_head(fd: int) -> bool:
    """Whether a segment is known as packed by its first block alone. Raises UnknownVersion."""
    return is_packed(fd) and read_at(fd, len(MAGIC), 0) != MAGIC


def header_at(fd: int, where: object = "a segment") -> int:
    """The offset of a segment's header in its file, packed or not. Raises UnknownVersion."""
    return _HEAD.size if is_packed(fd, where) else 0


def header_of(fd: int, where: object) -> Record:
    """The header of a segment, packed or not. Raises BadSpool, UnknownVersion, OSError."""
    return decode_header(read_at(fd, HEADER_BYTES, header_at(fd, where)), where)


def open_plain(path: Path, keys: Keys | None = None, *, links: bool = False) -> int:
    """A descriptor of a segment as it was before it was packed; of the file itself when it is not.

    `keys`: of the segment, if its header is damaged. Damaged bytes of a packed one read as zeros.
    Raises ReadFailed, OSError, UnknownVersion.
    """
    fd = open_to_read(path, links=links)
    try:
        if not is_packed(fd, path):
            plain, fd = fd, -1
            return plain
        return _unpack(fd, path.name, keys)
    finally:
        if fd >= 0:
            os.close(fd)


def _unpack(fd: int, name: str, keys: Keys | None) -> int:
    plain = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        data = read_at(fd, HEADER_BYTES, _HEAD.size)
        write_at(plain, data, 0)
        at = HEADER_BYTES
        for size, block in _blocks(fd, keys or _keys(fd)):
            if at + size > MOST_BYTES:
                break
            if block is not None:
                write_at(plain, block, at)
            at += size
        footer = footer_of(fd)
        end = _end_by_footer(data, footer)
        if at < end <= MOST_BYTES:
            # Also if a damaged length hides the blocks behind it; but never over frames.
            at = end
        os.ftruncate(plain, at)
        write_at(plain, footer, at)
    except BaseException:
        os.close(plain)
        raise
    return plain


def _end_by_footer(header: bytes, footer: bytes) -> int:
    """The offset behind the last frame, by the footer of the segment with this header; 0 without one."""
    try:
        found = decode_footer(footer, decode_header(header, ""))
    except BadSpool:
        return 0
    return int(found.fields["end"]) if found else 0


def unpacked_bytes(path: Path) -> int:
    """Bytes of memory that `open_plain` takes for a segment, at most; 0 for one that is not packed, or gone.

    By its lengths alone. A segment that the disk does not give takes none: its reader says so. Raises
    OSError.
    """
    try:
        fd = open_to_read(path)
    except (FileNotFoundError, NotAFile):
        return 0
    try:
        return _plain_bytes(fd) if is_packed(fd) else 0
    except (UnknownVersion, ReadFailed):
        return 0
    finally:
        os.close(fd)


def _plain_bytes(fd: int) -> int:
    found = HEADER_BYTES
    for plain_bytes, *_ in _heads(fd):
        if found + plain_bytes > MOST_BYTES:
            break
        found += plain_bytes
    return found


UNPACKED = Weights(unpacked_bytes, 2 * MOST_BYTES)
"""For commands that read several segments at once: most unpacked bytes of all of them."""


def _blocks(fd: int, keys: Keys) -> Iterator[tuple[int, bytes | None]]:
    """(plain length, plain bytes) of each block; None for damaged bytes. A damaged length ends them."""
    plain = HEADER_BYTES
    for plain_bytes, at, packed_bytes, check in _heads(fd):
        data = read_at(fd, packed_bytes, at)
        good = check is None or check == _check(data, plain_bytes, plain, keys)
        yield plain_bytes, decompress(data, plain_bytes) if good else None
        plain += plain_bytes


def _heads(fd: int) -> Iterator[tuple[int, int, int, int | None]]:
    """(plain length, offset of its bytes in the file, packed length, check) of each block."""
    at, end = _FIRST, os.fstat(fd).st_size - len(footer_of(fd))
    head = _block_head(fd)
    while at + head.size <= end:
        packed_bytes, plain_bytes, *check = head.unpack(read_at(fd, head.size, at))
        at += head.size
        if not (0 < plain_bytes <= _MOST_PLAIN and packed_bytes <= min(_MOST_PACKED, end - at)):
            return
        yield plain_bytes, at, packed_bytes, check[0] if check else None
        at += packed_bytes


def _block_head(fd: int) -> struct.Struct:
    """The head of each block of a packed file."""
    head = read_at(fd, _HEAD.size, 0)
    version = _HEAD.unpack(head)[1] if head.startswith(MAGIC) else _version_by_block(fd)
    return _LENGTHS if version < 2 else _CHECKED  # noqa: PLR2004


def _keys(fd: int) -> Keys:
    """The keys of the segment that was packed; if its header is damaged, keys that fit no block."""
    try:
        return keys_of(decode_header(read_at(fd, HEADER_BYTES, _HEAD.size), ""))
    except BadSpool:
        return OLD_KEYS


def _check(data: bytes, plain_bytes: int, offset: int, keys: Keys) -> int:
    """The check of a block whose bytes are at an offset of the segment."""
    return digest(_LENGTHS.pack(len(data), plain_bytes) + data, unsigned(keys.key ^ offset))


def footer_of(fd: int) -> bytes:
    """The bytes of the footer with which a segment file ends; none when it is damaged.

    It claims its own length: no more bytes are read than a footer can have.
    """
    size = os.fstat(fd).st_size
    length = footer_bytes(read_at(fd, FOOTER_TAIL.itemsize, max(0, size - FOOTER_TAIL.itemsize)))
    if not 0 < length <= min(size, MOST_FOOTER_BYTES):
        return b""
    at = size - length
    version = int(np.frombuffer(read_at(fd, FOOTER.itemsize, at), FOOTER)[0]["version"])
    end = MOST_BYTES if is_packed(fd) else at
    return read_at(fd, length, at) if length <= most_footer_bytes(version, end) else b""


def pack(source: int, target: int, block_bytes: int = BLOCK_BYTES) -> None:
    """Write the sealed segment `source`, packed, to the empty file `target`, and read it back.

    `block_bytes`: of a block before it is packed, at most BLOCK_BYTES.
    Raises BadSpool when it is not sealed, or the bytes read back are not those written; OSError.
    """
    footer = footer_of(source)
    end = os.fstat(source).st_size - len(footer)
    if not footer:
        raise BadSpool("it is not sealed")
    if end > MOST_BYTES:
        raise BadSpool(f"it has {end} bytes, more than a reader unpacks ({MOST_BYTES})")
    header = read_at(source, HEADER_BYTES, 0)
    keys = keys_of(decode_header(header, "the segment"))
    write_at(target, _HEAD.pack(MAGIC, VERSION) + header, 0)
    at = _FIRST
    for start in range(HEADER_BYTES, end, block_bytes):
        plain = read_at(source, min(block_bytes, end - start), start)
        packed = compress(plain)
        head = _CHECKED.pack(len(packed), len(plain), _check(packed, len(plain), start, keys))
        write_at(target, head + packed, at)
        at += len(head) + len(packed)
    write_at(target, footer, at)
    read = HEADER_BYTES
    for size, data in _blocks(target, keys):
        if data is None or data != read_at(source, size, read):
            break
        read += size
    if read != end:
        raise BadSpool(f"the packed segment does not read back at byte {read}")


LEVEL = 3
"""Some 300 MB/s of one processor; higher levels gain little on messages."""
ZSTD = b"\x28\xb5\x2f\xfd"
"""The first bytes of every zstd frame (RFC 8878)."""


def compress(plain: bytes) -> bytes:
    """One frame of zstd, with a checksum."""
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(plain)


def decompress(packed: bytes, plain_bytes: int) -> bytes | None:
    """The content of a zstd frame; None when it is damaged, or not of that size."""
    try:
        # zstd allocates the size that the frame claims, whatever the limit: a rotten one exhausts memory.
        if zstandard.frame_content_size(packed) != plain_bytes:
            return None
        plain = zstandard.ZstdDecompressor().decompress(packed, max_output_size=plain_bytes)
    except zstandard.ZstdError:
        return None
    return plain if len(plain) == plain_bytes else None
