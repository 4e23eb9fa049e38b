"""What an attack is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from tools.adversaries.villain import Villain, Words, flood

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

Settings = Mapping[str, Mapping[str, Any]]


class Attack:
    """One thing that somebody tries. The docstring of a subclass says what, and what must hold."""

    name: ClassVar[str]
    settings: ClassVar[Settings] = {}
    timed: ClassVar[bool] = True
    """Whether the honest may be held to their latency: not where processes are killed."""
    failpoint: ClassVar[bool] = False
    """Whether workers can be killed between a frame's head and its digest."""
    clock: ClassVar[bool] = False
    """Whether the daemon's monotonic clock can be put forward."""

    def before(self, arena: Arena) -> None:
        """What is planted before the daemon starts."""

    def control(self, arena: Arena, stack: ExitStack) -> None:
        """Start the load that the attack is compared with, beside the honest senders."""

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        """Start what attacks; the stack ends it."""

    def step(self, arena: Arena) -> None:
        """Do something more, again and again while the attack goes on."""


class Flood(Attack):
    """Datagrams of another user, held against as many good ones of the same sizes."""

    rate: ClassVar[int] = 10_000
    good_bytes: ClassVar[int] = 150
    villains: ClassVar[int] = 1

    def datagrams(self, words: Words, number: int) -> Sequence[bytes]:
        """Those of the n-th round."""
        raise NotImplementedError

    def control(self, arena: Arena, stack: ExitStack) -> None:
        """Good messages, as many and as large."""
        good = [arena.good_message(self.good_bytes)] * 100
        self._start(arena, stack, lambda _words, _number: good)

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        """The flood."""
        self._start(arena, stack, self.datagrams)

    def _start(self, arena: Arena, stack: ExitStack, what: Callable[[Words, int], Sequence[bytes]]) -> None:
        for _ in range(self.villains):
            run = flood(arena.socket, what, self.rate // self.villains)
            arena.villains.append(stack.enter_context(Villain(run)))
