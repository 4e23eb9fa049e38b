"""zstd, one block at a time."""

from __future__ import annotations

import zstandard

LEVEL = 3
"""Some 300 MB/s of one processor; higher levels gain little on messages."""
MAGIC = b"\x28\xb5\x2f\xfd"
"""How every frame of zstd begins (RFC 8878)."""


def compress(plain: bytes) -> bytes:
    """One frame of zstd, with a checksum."""
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(plain)


def decompress(packed: bytes, plain_bytes: int) -> bytes | None:
    """What a frame holds; None when it is damaged, or is not of that size."""
    try:
        # As much as the frame says it holds is allocated, whatever the limit: rot there is out of memory.
        if zstandard.frame_content_size(packed) != plain_bytes:
            return None
        plain = zstandard.ZstdDecompressor().decompress(packed, max_output_size=plain_bytes)
    except zstandard.ZstdError:
        return None
    return plain if len(plain) == plain_bytes else None
