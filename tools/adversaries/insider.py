"""An attacker that may read the spool, and so knows its secret."""

from __future__ import annotations

import contextlib
import os
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
from tools.adversaries.attack import Settings
from tools.adversaries.forging import Planted
from tools.adversaries.villain import BURST, NOBODY, SEQUENCE, Villain, Words, flood

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

_ROUND = 4


class GroupReader(Planted):
    """A reader of the group sends frames with the marks and digests of the very segment that takes them in.

    After a power loss it could forge frames (docs/threat-model.md). Within a boot no process searches after
    the announced end: even with ingest workers that die inside frames, none of its frames is accepted.
    """

    name = "group-reader"
    settings: ClassVar[Settings] = {"spool": {"segment_bytes": 16 << 20}}

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        """Let the group in, like an operator's chmod and chgrp; files made later have the group, too."""
        for folder in (arena.bruce.spool, arena.bruce.spool / "segments"):
            os.chown(folder, -1, NOBODY)
            folder.chmod(0o2750)
            for path in folder.iterdir():
                if path.is_file():
                    os.chown(path, -1, NOBODY)
        self._spool = os.open(arena.bruce.spool, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, self._spool)
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


def read_keys() -> Keys:
    """The keys of the segment in use, in the spool of the working directory; of version 1 if none is read."""
    with contextlib.suppress(SpoolError, FileNotFoundError):
        if segment := live_segment(Layout(Path())):
            return keys_of(segment.header)
    return OLD_KEYS
