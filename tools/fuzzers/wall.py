"""Memory that ends at a page without access: a read after the input is a SIGSEGV, not a guess."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

from spool.native.memory import address_of

_libc = ctypes.CDLL(None, use_errno=True)


class Wall:
    """Room for inputs of up to `size` bytes."""

    def __init__(self, size: int) -> None:
        self._room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._bytes = np.frombuffer(mmap.mmap(-1, self._room + mmap.PAGESIZE), np.uint8)
        behind = ctypes.c_void_p(address_of(self._bytes) + self._room)
        if _libc.mprotect(behind, ctypes.c_size_t(mmap.PAGESIZE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, data: bytes) -> npt.NDArray[np.uint8]:
        """A copy whose last byte is the last before the wall; valid until the next."""
        view = self._bytes[self._room - len(data) : self._room]
        view[:] = np.frombuffer(data, np.uint8)
        return view
