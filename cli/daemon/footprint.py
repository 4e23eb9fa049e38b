"""The memory of the daemon: what its processes have from the C library, and of the libraries that it maps."""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from pathlib import Path

MAPPED_BYTES = 256 << 10
"""An allocation of this size has pages of its own, which take memory from first use until it is freed."""
_M_MMAP_THRESHOLD = -3
_MADV_DONTNEED = 4
_MAPPING = rb"^([0-9a-f]+)-([0-9a-f]+) (\S+) ([^\n]*)$.*?^Anonymous: +(\d+) kB$.*?^Swap: +(\d+) kB$"
"""A mapping in smaps (proc_pid_smaps(5))."""
_LIBRARY, _WRITABLE = b".so", b"w"


def map_what_is_large() -> None:
    """Have the C library map each large allocation by itself, in this process and those that it forks.

    Left to itself it takes them from the heap once a large one has been freed, as LLVM does: tables that are
    hardly used then took 9 MB of the delivery worker, all zeros (mallopt(3)).
    """
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)


def let_go() -> None:
    """Give back what is free of the heap, and unmap the pages of libraries that are as in their files.

    LLVM has 65 MB of these, which are not needed again. The kernel maps a page again when it is used: so each
    process that is forked has those that it uses.
    """
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    with suppress(OSError):
        found = re.findall(_MAPPING, Path("/proc/self/smaps").read_bytes(), re.MULTILINE | re.DOTALL)
        for first, end, rights, name, anonymous, swapped in found:
            # Another thread would lose what it writes meanwhile.
            if _LIBRARY in name and _WRITABLE not in rights and anonymous == swapped == b"0":
                at, length = int(first, 16), int(end, 16) - int(first, 16)
                libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(length), _MADV_DONTNEED)
