"""Attackers that may read the spool, and so know its secret, and could lock its files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from spool.errors import SpoolError
from spool.format.segment_format import OLD_KEYS, Keys, keys_of
from spool.format.wire import encode
from spool.index.log_end import live_segment
from spool.layout import Layout
from tools.adversaries import planting
from tools.adversaries.attack import Attack, Settings
from tools.adversaries.forging import Planted
from tools.adversaries.villain import BURST, DONE, NOBODY, SEQUENCE, STOP, Villain, Words, flood

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

_ROUND = 4
_MOST_HELD, _LOOK_S = 1000, 0.02
_ALIVE_S, _DEAD_S = 1.0, 0.3


class GroupReader(Planted):
    """A reader of the group sends frames with the marks and digests of the very segment that takes them in.

    After a power loss it could forge frames (docs/threat-model.md). Within a boot no process searches after
    the announced end: even with ingest workers that die inside frames, none of its frames is accepted.
    """

    name = "group-reader"
    settings: ClassVar[Settings] = {"spool": {"segment_bytes": 16 << 20}}

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        self._spool = let_in(arena.bruce.spool, stack)
        self._keys_read = False
        run = flood(arena.socket, self._datagrams, self.rate)
        arena.villains.append(stack.enter_context(Villain(run)))

    def _datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del number
        if not self._keys_read:
            # The attacker need not be allowed to enter its parents.
            os.fchdir(self._spool)
            self._keys_read = True
        value = planting.frames(int(words[SEQUENCE]), int(words[BURST]), read_keys())
        return [encode(b"flood", value)] * _ROUND


class LockFiles(Attack):
    """A reader of the group locks each file of the spool that it can open, and never lets go.

    Every process dies at once, repeatedly; the next daemon starts, and delivers.
    """

    name = "lock-files"
    timed = False

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        spool = let_in(arena.bruce.spool, stack)

        def run(words: Words) -> None:
            os.fchdir(spool)
            held: dict[str, int] = {}
            while not words[STOP]:
                for path in Path().rglob("*"):
                    if str(path) not in held and len(held) < _MOST_HELD and (fd := _lock(path)):
                        held[str(path)] = fd
                        words[DONE] += 1
                time.sleep(_LOOK_S)

        arena.villains.append(stack.enter_context(Villain(run)))

    def step(self, arena: Arena) -> None:
        """Kill everything, leave the locks to the attacker for a moment, and start again."""
        time.sleep(_ALIVE_S)
        arena.kill_all()
        time.sleep(_DEAD_S)
        arena.bruce.start()

    def judge(self, arena: Arena) -> None:
        """Check that there was anything that the reader could lock."""
        if not sum(int(villain.words[DONE]) for villain in arena.villains):
            arena.report("the reader could open no file: nothing was tried")


def let_in(spool: Path, stack: ExitStack) -> int:
    """Let the group in, like an operator's chmod and chgrp; files made later have the group, too.

    Returns a descriptor of the spool: the attacker need not be allowed to enter its parents.
    """
    for folder in (spool, *(path for path in spool.rglob("*") if path.is_dir())):
        os.chown(folder, -1, NOBODY)
        folder.chmod(0o2750)
        for path in folder.iterdir():
            if path.is_file():
                os.chown(path, -1, NOBODY)
    found = os.open(spool, os.O_RDONLY | os.O_DIRECTORY)
    stack.callback(os.close, found)
    return found


def _lock(path: Path) -> int:
    """Take a flock on a file, and a POSIX lock that shuts out writers; the descriptor, 0 without any."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return 0
    return fd


def read_keys() -> Keys:
    """The keys of the segment in use, in the spool of the working directory; of version 1 if none is read."""
    with contextlib.suppress(SpoolError, FileNotFoundError):
        if segment := live_segment(Layout(Path())):
            return keys_of(segment.header)
    return OLD_KEYS
