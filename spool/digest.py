"""The digest of the log: XXH3, 64 bits, seeded (the xxHash library, as the xxhash wheel carries it).

Compiled loops call the library's own function by address; ordinary Python uses the wheel's interface.
Both give the same number, and a test holds them together.
"""

from __future__ import annotations

import ctypes

import xxhash

from spool.errors import MissingPart
from spool.kernel import function_address


def digest(data: bytes | bytearray | memoryview, seed: int = 0) -> int:
    """XXH3-64 of `data`, seeded; an unsigned 64-bit integer."""
    return xxhash.xxh3_64_intdigest(data, seed)


def digest_function() -> int:
    """The address of `XXH3_64bits_withSeed(pointer, length, seed)`, for `spool.kernel.call`.

    Raises MissingPart when this build of the wheel hides the function.
    """
    library = ctypes.CDLL(xxhash._xxhash.__file__)
    try:
        return function_address(library.XXH3_64bits_withSeed)
    except AttributeError:
        raise MissingPart(
            f"the xxhash library at {xxhash._xxhash.__file__} does not export XXH3_64bits_withSeed; "
            "install the xxhash wheel for this platform"
        ) from None
