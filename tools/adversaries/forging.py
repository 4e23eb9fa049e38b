"""Payloads that are made to look like parts of the log, and kills that make a successor search it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from tools.adversaries import planting
from tools.adversaries.attack import Flood
from tools.adversaries.villain import BURST, SEQUENCE, Words
from tools.bruce_process import START_S
from tools.waiting import wait_until

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

from spool.format.wire import encode

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
    """Packed blocks and bombs in values, with small segments, which are sealed and packed beside it."""

    name = "planted-zstd"
    payload = planting.packed
    whole = True


class FakeHeads(Planted):
    """Heads with plausible numbers that claim bodies of 900 kB, 65 bytes apart, in the path of a search.

    The successor of a killed worker must be at work as soon as among good messages.
    """

    name = "fake-heads"
    payload = planting.fake_heads
