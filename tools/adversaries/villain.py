"""A forked process of another user: it may do what any user of the host may do."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from tools.load_sender import become_sender

STOP, DONE, REFUSED, SEQUENCE, BURST, DUE = range(6)
"""Words shared with the process: it shall end; what it did; what was refused; the log's next numbers, which
an attacker is allowed to know; what an honest sender should have sent by now."""
WORDS = 8
NOBODY, HONEST, OTHER = 65534, 65533, 65532
STOP_S = 3.0
PAUSE_S = 0.002

Words = npt.NDArray[np.int64]


class Villain:
    """Runs a function as another user until the block ends, or until `stop`."""

    def __init__(self, run: Callable[[Words], object], uid: int = NOBODY) -> None:
        self.words: Words = np.frombuffer(mmap.mmap(-1, 8 * WORDS), np.int64)
        parent = os.getpid()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            return
        try:
            become_sender(parent, uid)
            run(self.words)
        except OSError as error:
            print(f"tools/adversary: a process of uid {uid} ended: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(0)

    def ask_to_stop(self) -> None:
        """Let it end by itself."""
        self.words[STOP] = 1

    def stop(self) -> None:
        """End it, by SIGKILL if it does not end by itself; return when it has ended."""
        self.ask_to_stop()
        end = time.monotonic() + STOP_S
        while self.pid and not os.waitpid(self.pid, os.WNOHANG)[0]:
            if time.monotonic() > end:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.01)
        self.pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def connect(path: Path, kind: int = socket.SOCK_DGRAM) -> socket.socket:
    """A connected UNIX socket; waits while there is none. Raises OSError."""
    for left in range(500, -1, -1):
        sender = socket.socket(socket.AF_UNIX, kind)
        try:
            sender.settimeout(0.2)
            sender.connect(str(path))
        except OSError:
            sender.close()
            if not left:
                raise
            time.sleep(0.01)
        else:
            return sender
    raise AssertionError


def flood(
    path: Path, datagrams: Callable[[Words, int], Sequence[bytes]], rate: int
) -> Callable[[Words], None]:
    """Send the `datagrams` of the n-th round, so many a second, as far as the daemon takes them."""

    def run(words: Words) -> None:
        sender, number, begun = connect(path), 0, time.monotonic()
        while not words[STOP]:
            for data in datagrams(words, number):
                if words[STOP]:
                    return
                sender = _send(sender, path, data, words)
            number += 1
            time.sleep(max(0.0, begun + int(words[DONE]) / rate - time.monotonic()))

    return run


def _send(sender: socket.socket, path: Path, data: bytes, words: Words) -> socket.socket:
    """Send one; returns the socket for the next, a new one if the daemon has gone away."""
    try:
        sender.send(data)
    except TimeoutError:
        return sender
    except OSError:
        words[REFUSED] += 1
        sender.close()
        return connect(path)
    words[DONE] += 1
    return sender
