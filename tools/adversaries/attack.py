"""The base class of attacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, ClassVar

from tools.adversaries.villain import Villain, Words, flood

if TYPE_CHECKING:
    from tools.adversaries.arena import Arena

Settings = Mapping[str, Mapping[str, Any]]


class Holder(Enum):
    """The owner of the datagram socket while every process of the daemon is dead."""

    SYSTEMD = auto()
    """The arena, which hands it over as systemd does."""
    HOLD_SOCKET = auto()
    NOBODY = auto()
    """The messages in its queue are then lost."""


class Attack:
    """One kind of attack. The docstring of a subclass describes it, and the condition that must hold."""

    name: ClassVar[str]
    settings: ClassVar[Settings] = {}
    timed: ClassVar[bool] = True
    """Whether the latency of honest messages is judged: not when processes are killed."""
    failpoint: ClassVar[bool] = False
    """Whether workers can be killed between a frame's head and its digest."""
    clock: ClassVar[bool] = False
    """Whether the daemon's clocks can be set: the words are seconds, monotonic and of the time of day."""
    stream_bytes: ClassVar[int] = 120
    """Of the values that honest senders send on streams."""
    holder: ClassVar[Holder] = Holder.SYSTEMD
    real: ClassVar[bool] = False
    """Whether only Apache Kafka can be attacked so: one broker then, where --real has three."""
    kafka: ClassVar[bool] = False
    """Whether the daemon has a Kafka input."""
    least_s: ClassVar[float] = 0.0
    """Seconds of its attack phase, at least: time limits of the daemon end in it."""

    def before(self, arena: Arena) -> None:
        """Plant files before the daemon starts."""

    def control(self, arena: Arena, stack: ExitStack) -> None:
        """Start the load for comparison with the attack, beside the honest senders."""

    def begin(self, arena: Arena, stack: ExitStack) -> None:
        """Start the attackers; the stack ends them."""

    def step(self, arena: Arena) -> None:
        """Take one more step; called repeatedly during the attack."""

    def judge(self, arena: Arena) -> None:
        """Report faults beyond those checked for every attack; afterwards the daemon runs once more."""


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
