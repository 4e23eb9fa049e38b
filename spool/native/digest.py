"""The digest of the log: XXH3, 64 bits, seeded (the xxHash library, as the xxhash wheel carries it).

Compiled loops call the library's own function by address; ordinary Python uses the wheel's interface.
Both give the same number, and a test holds them together.

Rows of the marks are here, too: each ends with a digest of its key and value, seeded with an identity.
"""

from __future__ import annotations

import ctypes
from functools import cache

import xxhash

from spool.errors import MissingPart
from spool.native.memory import function_address

CHUNK_BYTES = 2008
"""Of a bitmap: a bit less than half a page, so that LMDB fits two in one and copies no more than it must."""
CHUNK_MESSAGES = 8 * CHUNK_BYTES
CHECK_BYTES = 8
TOPIC_BYTES = 400
"""Most bytes of a topic's name in a key: LMDB's keys have 511 bytes at most."""
UNTOLD = -1
"""The identity of a segment whose header the disk cannot read at present. Rows about it are believed: taken
for another segment's, they would be forgotten for good."""


def digest(data: bytes | bytearray | memoryview, seed: int = 0) -> int:
    """XXH3-64 of `data`, seeded; an unsigned 64-bit integer."""
    return xxhash.xxh3_64_intdigest(data, seed)


@cache
def digest_function() -> int:
    """The address of `XXH3_64bits_withSeed(pointer, length, seed)`, for `spool.native.memory.call`.

    The library is opened once: each time that it is costs memory for good. Raises MissingPart when this build
    of the wheel hides the function.
    """
    return _address("XXH3_64bits_withSeed")


@cache
def xxh64_function() -> int:
    """The same of `XXH64(pointer, length, seed)`, which is not the log's but of `pipeline.source`."""
    return _address("XXH64")


def _address(name: str) -> int:
    library = ctypes.CDLL(xxhash._xxhash.__file__)
    try:
        return function_address(getattr(library, name))
    except AttributeError:
        raise MissingPart(
            f"the xxhash library at {xxhash._xxhash.__file__} does not export {name}; "
            "install the xxhash wheel for this platform"
        ) from None


def check(key: bytes, value: bytes, identity: int) -> bytes:
    """The check at the end of a row."""
    return digest(key + value, max(identity, 0)).to_bytes(CHECK_BYTES, "little")


def matches(key: bytes, row: bytes, identity: int) -> bool:
    """Whether a row ends with the check of its key and its value, as far as that can be known."""
    return identity == UNTOLD or row[-CHECK_BYTES:] == check(key, row[:-CHECK_BYTES], identity)
