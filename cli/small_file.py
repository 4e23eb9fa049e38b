"""Files that an operator names and that are read whole: none of them is long, or waits for ever.

What is named may be a device that never ends, a log by mistake, or a pipe (`--config <(decrypt FILE)` is one)
into which nobody writes.
"""

from __future__ import annotations

import errno
import os
import select
import time
from pathlib import Path

MOST_BYTES = 1 << 20
PATIENCE_S = 10.0
"""For a pipe to come to its end."""


def read_small(path: Path) -> bytes:
    """All that is in a file of at most MOST_BYTES. Raises OSError, also for one that has more or no end."""
    until = time.monotonic() + PATIENCE_S
    # Without O_NONBLOCK a pipe is not even opened before somebody writes to it.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        data = bytearray()
        while part := _part(fd, until):
            data += part
            if len(data) > MOST_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB")
        return bytes(data)
    finally:
        os.close(fd)


def _part(fd: int, until: float) -> bytes:
    """What comes next; nothing at the end."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if not waiting.poll(max(0.0, until - time.monotonic()) * 1000):
        raise OSError(errno.ETIMEDOUT, f"its end has not come within {PATIENCE_S:g} s")
    return os.read(fd, 64 << 10)
