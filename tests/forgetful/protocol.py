"""The kernel's side of FUSE, as bytes: the few requests that a spool makes, and the answers to them.

    request := length:u32 opcode:u32 unique:u64 node:u64 uid:u32 gid:u32 pid:u32 pad:u32, then its own fields
    answer  := length:u32 error:i32 unique:u64, then its own fields

Little-endian, protocol 7.31: what an older kernel sends is not understood, what a newer one sends is asked
for in this form. Names end with a zero byte.
"""

from __future__ import annotations

import struct
from enum import IntEnum

HEADER = struct.Struct("<IIQQIIII")
ANSWER = struct.Struct("<IiQ")
MAJOR, MINOR = 7, 31
MOST_WRITTEN = 1 << 17
"""Bytes of one write request."""


class Opcode(IntEnum):
    """Requests, by their number."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    RENAME2 = 45


UNANSWERED = (Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT)

INIT = struct.Struct("<IIII")
"""The request's fields: major, minor, most readahead, flags."""
INIT_ANSWER = struct.Struct("<IIIIHHIIHHI28x")
"""major, minor, most readahead, flags, background, congestion, most written, granularity, pages, 0, flags."""
BIG_WRITES = 1 << 5

ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
"""inode, size, blocks, three times in s, the same in ns, mode, links, uid, gid, device, block size, flags."""
ENTRY = struct.Struct("<QQQQII")
"""node, generation, two spans of validity in s and in ns; then attributes: it makes a node known."""
ATTRIBUTES_VALID = struct.Struct("<QII")
"""A span of validity in s and ns, 0: an answer with attributes alone."""
SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
"""valid, 0, handle, size, owner, three times in s, in ns, mode, 0, uid, gid, 0."""
SIZE_VALID, MODE_VALID = 1 << 3, 1 << 0
OPENED = struct.Struct("<QII")
"""handle, flags, 0."""
KEEP_CACHE = 1 << 1
READ = struct.Struct("<QQIIQII")
"""handle, offset, size, flags, owner, flags, 0; of a write request the data follow."""
FSYNC = struct.Struct("<QII")
FALLOCATE = struct.Struct("<QQQII")
"""handle, offset, length, mode, 0."""
WRITTEN = struct.Struct("<II")
CREATE = struct.Struct("<IIII")
"""flags, mode, mask, flags; then the name."""
MKDIR = struct.Struct("<II")
RENAME = struct.Struct("<Q")
RENAME2 = struct.Struct("<QII")
LINK = struct.Struct("<Q")
STATFS = struct.Struct("<QQQQQIIII24x")
"""blocks, free, available, files, free files, block size, length of a name, fragment size, 0."""
DIRENT = struct.Struct("<QQII")
"""inode, offset of the next, length of the name, kind; then the name, padded to 8."""


def names(data: bytes) -> list[bytes]:
    """The names at the end of a request."""
    return data.split(b"\0")[:-1]


def dirent(inode: int, offset: int, name: bytes, kind: int) -> bytes:
    """An entry of a directory that is read."""
    data = DIRENT.pack(inode, offset, len(name), kind) + name
    return data + bytes(-len(data) % 8)
