"""One peer in one case: sender, Kafka, the resources it uses, and the count at the end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tools.benches.machine import cpu_seconds, family, resident_bytes
from tools.leagues.arrivals import Arrivals
from tools.leagues.peer import Peer
from tools.leagues.sender import Sender
from tools.targets import Real

VALUE_BYTES = 100
WARM_UP = 500
FULL_SPEED = 1_000_000
LOOK_S = 0.25
SEND_S = 90.0
"""Longest time for a sender to be rid of its messages."""
SHARE_S = 60.0
QUIET_S, LIMIT_S = 15.0, 240.0
"""A backlog counts as lost when no message of it came for so long, or it takes so long."""


@dataclass(frozen=True, slots=True)
class Row:
    """One peer in one case. Counts are of messages."""

    peer: str
    accepted: int
    """Successful sends."""
    arrived: int
    """Of these, in Kafka at least once."""
    doubled: int
    """Copies in Kafka beyond the first of each."""
    out_of_order: int
    """First appearances with a lower number than the one before."""
    waiting: int
    """Still in its queues at the end, by its own counters."""
    discarded: int
    """Given up, by its own counters."""
    cpu_s: float
    """All its processes and lives."""
    pss_mb: float
    """Most at any look, all processes together."""
    seconds: float
    """From the first message to the last that arrived."""
    remark: str = ""

    @property
    def lost(self) -> int:
        """Accepted, and not in Kafka."""
        return self.accepted - self.arrived

    @property
    def uncounted(self) -> int:
        """Lost, and its counters say nothing of it."""
        return max(0, self.lost - self.waiting - self.discarded)

    def cells(self) -> tuple[str, ...]:
        """One for each heading."""
        counts = (self.accepted, self.arrived, self.lost, self.doubled, self.out_of_order)
        said = (self.waiting, self.discarded, self.uncounted)
        used = (f"{self.cpu_s:.1f}", f"{self.pss_mb:.0f}", f"{self.seconds:.0f}")
        return (*(f"{count:,}" for count in (*counts, *said)), *used)


class Watch(threading.Thread):
    """CPU time and memory of all processes of a peer, in all its lives."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(name="watch", daemon=True)
        self.pss_bytes = 0
        self._peer = peer
        self._cpu: dict[int, float] = {}
        self._over = threading.Event()

    @property
    def cpu_s(self) -> float:
        """All that was seen."""
        return sum(self._cpu.values())

    def run(self) -> None:
        while not self._over.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Take one sample."""
        with contextlib.suppress(OSError, KeyError):
            pids = family(self._peer.pid) if self._peer.pid else []
            self._cpu |= {pid: cpu_seconds(pid) for pid in pids}
            self.pss_bytes = max(self.pss_bytes, sum(resident_bytes(pid)[0] for pid in pids))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.look()
        self._over.set()
        self.join()


@dataclass(slots=True)
class Match:
    """The state of one peer in one case; the script calls its methods in turn."""

    peer: Peer
    kafka: Real
    count: int
    """Messages to send, the first ones included."""
    arrivals: Arrivals
    size: int = VALUE_BYTES
    accepted: int = 0
    """Of the topic that Kafka has."""
    strangers: int = 0
    """Accepted of the topic that Kafka does not have."""
    remarks: list[str] = field(default_factory=list)

    @contextmanager
    def sending(self, rate: int = FULL_SPEED, *, count: int = 0, topic: str = "") -> Iterator[Sender]:
        """A sender of `count` further messages, or of all that are left, which ends with the block."""
        count = count or self.count - self.accepted
        first = 0 if topic else self.accepted
        name = topic or self.peer.setting.topic
        sender = Sender(self.peer.connect, name, range(first, first + count), self.size, rate)
        sender.start()
        try:
            yield sender
            sender.finish(SEND_S)
            if sender.accepted < count:
                kind = "of the unknown topic" if topic else "of the good topic"
                self.remarks.append(f"it did not take {count - sender.accepted:,} messages {kind}")
        finally:
            sender.finish(0)
            if topic:
                self.strangers += sender.accepted
            else:
                self.accepted += sender.accepted

    def send(self, count: int = 0) -> None:
        """Send so many messages, or all that are left, as fast as the peer takes them."""
        with self.sending(count=count):
            pass

    def warm_up(self) -> None:
        """Deliver the first messages: the peer knows Kafka, and Kafka the peer."""
        self.send(WARM_UP)
        self.arrivals.follow(WARM_UP, SHARE_S, SHARE_S)

    def wait_for(self, sender: Sender, share: float, count: int, timeout_s: float = SHARE_S) -> None:
        """Return when this share of `count` is accepted, or the sender is stuck."""
        end = time.monotonic() + timeout_s
        while sender.is_alive() and sender.accepted < share * count and time.monotonic() < end:
            time.sleep(0.005)

    def settle(self) -> None:
        """Wait for what is still to come."""
        self.arrivals.follow(self.accepted, QUIET_S, LIMIT_S)

    def judge(self, watch: Watch, began: float) -> Row:
        """The row, once all has settled. `began`: time.monotonic() at the first message."""
        findings = self.arrivals.findings(self.accepted)
        counted = self.peer.counted()
        if findings.corrupt or findings.unknown:
            self.remarks.append(f"{findings.corrupt} altered, {findings.unknown} were never sent")
        accepted = self.accepted + self.strangers
        lost = findings.missing + self.strangers
        waiting = min(lost, counted.waiting)
        return Row(
            self.peer.name,
            accepted,
            accepted - lost,
            findings.duplicates,
            findings.out_of_order,
            waiting,
            min(lost - waiting, counted.discarded),
            watch.cpu_s,
            watch.pss_bytes / 1e6,
            max(0.0, self.arrivals.last_at - began),
            "; ".join(self.remarks),
        )
