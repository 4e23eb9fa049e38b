"""Files as memory: the only home of mmap.

Only blocks that are reserved on disk are mapped writable (spool.disk.allocate, or a tmpfs that holds
them), and no file is cut while a writer maps it: either would turn a store into a SIGBUS.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
import numpy.typing as npt

from spool.kernel import address_of


class Mapping:
    """A file's bytes, shared with everyone who maps it.

    `bytes` uint8[length]; `address` of the first byte, for kernels.
    """

    def __init__(self, fd: int, *, length: int | None = None) -> None:
        """Map a file that is open to be read and written; the descriptor is closed. Raises OSError."""
        try:
            self.length = length or os.fstat(fd).st_size
            self._map = mmap.mmap(fd, self.length, mmap.MAP_SHARED)
        finally:
            os.close(fd)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.address = address_of(self.bytes)

    def close(self) -> None:
        """Unmap. Views of `bytes` that others keep stay valid, and keep the mapping alive."""
        del self.bytes
        self.address = 0
        try:
            self._map.close()
        except BufferError:
            # A view still lives; the mapping goes with the last of them.
            return
