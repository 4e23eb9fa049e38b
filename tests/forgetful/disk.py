"""A mount that forgets, as a test has it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from tests.daemon import ROOT

FOR_EVER = 1 << 62


class ForgetfulDisk:
    """A filesystem at `path`, served by a process of its own, until `close`."""

    def __init__(self, path: Path) -> None:
        """Mount it; the test is skipped where that cannot be, and on CI it fails."""
        self.path = path
        path.mkdir()
        if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
            refuse = pytest.fail if os.environ.get("CI") else pytest.skip
            refuse("no forgetful disk: it needs root and /dev/fuse")
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.forgetful.server"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._mounted = False
        self.mount()

    def _order(self, **order: object) -> None:
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(order).encode() + b"\n")
        self._server.stdin.flush()
        assert self._server.stdout.readline() == b"done\n", "the server of the disk is gone"

    def mount(self) -> None:
        """Power is there again: what was synced can be read."""
        self._order(do="mount", at=str(self.path))
        self._mounted = True

    def cut_power(self) -> None:
        """Forget what was not synced. Every call is an error from here on; `unmount` when all are dead."""
        self._order(do="cut")

    def unmount(self) -> None:
        """Unmount it."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=True, timeout=60)
        self._mounted = False

    def fail(
        self, opcode: str, name: str, code: int, times: int = 1, *, first: int = 0, end: int = FOR_EVER
    ) -> None:
        """The next requests of this kind, for files whose names end so, fail.

        A READ fails only if it touches bytes [first, end) of the file, which is to be opened after this.
        """
        self._order(do="fail", opcode=opcode, name=name, errno=code, times=times, first=first, end=end)

    def lose(self, name: str, first: int, end: int = FOR_EVER) -> None:
        """Bytes [first, end) of files whose names end so cannot be read, until `heal`: EIO."""
        self.fail("READ", name, errno.EIO, FOR_EVER, first=first, end=end)

    def heal(self) -> None:
        """End all faults."""
        self._order(do="heal")

    def limit(self, room: int | None) -> None:
        """Let all files together have this many bytes."""
        self._order(do="room", bytes=room)

    def lose_power(self) -> None:
        """Cut, unmount, mount again: no process may have a file open."""
        self.cut_power()
        self.unmount()
        self.mount()

    def close(self) -> None:
        """Unmount, and end the server."""
        if self._mounted:
            self._order(do="cut")
            self.unmount()
        assert self._server.stdin
        self._server.stdin.close()
        try:
            self._server.wait(60)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait(60)
        assert self._server.stdout
        self._server.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
