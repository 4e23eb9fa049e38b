"""A full pipe without a reader."""

from __future__ import annotations

import os
from contextlib import suppress

BLOCK_BYTES = 1 << 16


def full_pipe() -> tuple[int, int]:
    """(read end, write end), both blocking; the caller closes them."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, bytes(BLOCK_BYTES)):
            pass
    os.set_blocking(writer, True)
    return reader, writer
