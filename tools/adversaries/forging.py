"""Payloads that are made to look like parts of the log, and kills that make a successor search it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tools.adversaries import planting
from tools.adversaries.attack import Flood, Settings
from tools.adversaries.operations import brucectl, environ_of
from tools.adversaries.villain import BURST, SEQUENCE, Words
from tools.bruce_process import START_S
from tools.waiting import wait_until

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

from spool.format.packed import is_packed
from spool.format.segment import list_files
from spool.format.segment_format import HEAD_BYTES, HEADER_BYTES
from spool.format.wire import encode
from spool.layout import Layout
from spool.log.retention import AFTER_S

_ROUND = 4
_KILL_S, _ALL_EVERY = 0.4, 12


class Planted(Flood):
    """Planted bytes in values, and ingest workers that die between a frame's head and its digest."""

    timed = False
    failpoint = True
    rate = 200
    good_bytes = 60_000
    whole: ClassVar[bool] = False
    """Kill the whole daemon now and then, too."""
    payload: ClassVar[Callable[[int, int], bytes]]

    def __init__(self) -> None:
        self._number = 0

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        del number
        value = type(self).payload(int(words[SEQUENCE]), int(words[BURST]))
        return [encode(b"flood", value)] * _ROUND

    def step(self, arena: Arena) -> None:
        """Tear the next frame, so that its writer's successor searches the bytes after it."""
        time.sleep(_KILL_S)
        self._number += 1
        if self.whole and self._number % _ALL_EVERY == 0:
            arena.kill_all()
            arena.bruce.start()
            return
        worker = arena.bruce.workers().get("ingest")
        if not worker:
            return
        arena.tear()
        wait_until(
            lambda: arena.torn_by_now() or not arena.is_flowing(), 5.0, "a frame to be torn", pause_s=0.005
        )
        wait_until(
            lambda: arena.bruce.workers().get("ingest") not in (None, worker) or not arena.torn_by_now(),
            START_S,
            "a successor of the torn frame's writer",
        )


class PlantedFrame(Planted):
    """Self-consistent frames for every plausible number, with a forged uid and a topic that [access] forbids.

    A burst of 2^63-1 is among them. None may ever be taken for a frame, and no honest message be lost.
    """

    name = "planted-frame"
    payload = planting.frames


class PlantedFooter(Planted):
    """Frames with a footer after each: a search that believes it takes the log as sound up to its end."""

    name = "planted-footer"
    payload = planting.frames_with_footer


class PlantedHeader(Planted):
    """Headers of segments, with frames after them; the whole daemon dies, too, and opens its spool again."""

    name = "planted-header"
    payload = planting.headers
    whole = True


class PlantedZstd(Planted):
    """Packed blocks and bombs in values, while Kafka is away and segments are packed.

    The clock jumps ahead by the time after which a segment is packed. Workers search behind packed segments,
    the daemon opens them, and delivery unpacks them.
    """

    name = "planted-zstd"
    payload = planting.packed
    whole = True
    clock = True
    least_s = 20.0

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        self._packed = 0
        arena.target.stop_all()
        stack.callback(arena.target.start_all)
        super().begin(arena, stack)

    def step(self, arena: Arena) -> None:
        super().step(arena)
        arena.clock_words[0] += int(AFTER_S)
        self._packed = max(self._packed, _count_packed(Layout(arena.bruce.spool)))

    def judge(self, arena: Arena) -> None:
        """Check that the attack had what it is about."""
        if not self._packed:
            arena.report("no segment was packed: nothing was tried")


def _count_packed(layout: Layout) -> int:
    """Packed segments in the spool."""
    count = 0
    for path in layout.segments.iterdir():
        with contextlib.suppress(OSError), path.open("rb") as file:
            count += is_packed(file.fileno())
    return count


class FakeHeads(Planted):
    """Heads with plausible numbers that claim bodies of 8 MiB, 65 bytes apart, in the path of a search.

    In a copy of a segment each frame is damaged: all of it is searched, about as fast as it is read.
    """

    name = "fake-heads"
    payload = planting.fake_heads
    settings: ClassVar[Settings] = {"spool": {"segment_bytes": 24 << 20}}
    _FULL, _APART, _RATIO, _MORE_S = 16 << 20, 20_000, 3.0, 1.0

    def __init__(self) -> None:
        super().__init__()
        self._copy: Path | None = None
        self._before: set[str] = set()

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        self._before = {path.stem for path in list_files(Layout(arena.bruce.spool))}
        super().begin(arena, stack)

    def step(self, arena: Arena) -> None:
        super().step(arena)
        for path in list_files(Layout(arena.bruce.spool)) if self._copy is None else ():
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(self._FULL)
                if path.stem not in self._before and any(file.read(4096)):
                    self._copy = arena.directory / "copy.seg"
                    shutil.copyfile(path, self._copy)

    def judge(self, arena: Arena) -> None:
        """Compare how long `inspect verify` takes, before and behind the damage."""
        if self._copy is None:
            arena.report("no segment was long enough: nothing was tried")
            return
        whole_s = _verify(arena, self._copy)
        with self._copy.open("r+b") as file:
            for offset in range(HEADER_BYTES + HEAD_BYTES, self._FULL, self._APART):
                file.seek(offset)
                file.write(bytes(8))
        damaged_s = _verify(arena, self._copy)
        if damaged_s > self._RATIO * whole_s + self._MORE_S:
            arena.report(f"a damaged segment is verified in {damaged_s:.1f} s, a whole one in {whole_s:.1f}")


def _verify(arena: Arena, path: Path) -> float:
    """How long `brucectl inspect verify` takes, in s; a minute at most."""
    begun = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        command = brucectl("inspect", "verify", str(path))
        quiet = subprocess.DEVNULL
        subprocess.run(command, env=environ_of(arena), check=False, timeout=60, stdout=quiet, stderr=quiet)
    return time.monotonic() - begun
