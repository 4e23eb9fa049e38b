"""A file that takes all room of a filesystem, also room that is freed later, until it is removed."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

_STEPS = (1 << 20, 1 << 16, 1 << 12)
_PAUSE_S = 0.1


class Balloon:
    """The disk is full while the block lasts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="balloon", daemon=True)

    def _run(self) -> None:
        fd, size = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), 0
        try:
            while not self._over.is_set():
                size = self._grow(fd, size)
                self._over.wait(_PAUSE_S)
        finally:
            os.close(fd)
            self._path.unlink()

    def _grow(self, fd: int, size: int) -> int:
        for step in _STEPS:
            while not self._over.is_set():
                try:
                    os.posix_fallocate(fd, size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break
                size += step
        return size

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
