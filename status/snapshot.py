"""One look at a bruce; part of the shape of `brucectl status --json` (status.report), which others rely on.

    {"spool": {"uuid", "directory", "bytes", "segments"},
     "watermarks": {"accepted", "written", "synced", "delivered"},
     "received", "delivered", "discarded": {REASON: n}, "backlog",
     "full": [{"what", "topic", "since", "sentence"}], "disk": null or a sentence,
     "workers": [{"role", "pid", "restarts", "alive"}],
     "brokers": [{"id", "state", "offset", "in_flight", "acknowledged",
                  "round_trip", "queue", "throttle": {"count", "seconds", "median", "p99"}}],
     "trouble": null or a sentence, "dead_lettered": n,
     "acknowledgements": null or {"taken", "replied", "dropped", "waiting", "refused"},
     "lent": null or {"pid", "host", "since", "until"}, "unadopted": n, "held": bool,
     "other_release": null or {"pid", "page", "own"},
     "senders": [{"sender", "received", "discarded": {REASON: n}}],
     "inputs": [{"input", "stored", "refused",
                 "connections": null or {"accepted", "open", "closed": {HOW: n}, "errors"}}]}

Watermarks are the next sequence number that is not yet at the level. Counts are those of the spool's whole
life; `received = delivered + discarded + backlog` always holds. `trouble` says why nothing can be sent, or
not to some topics; `disk` what the disk refuses; `full` lists what has no room. `dead_lettered`: how many of
the discarded are in the dead-letter topic. `acknowledgements` are those of [ingest]
ack_socket, since the daemon was started. `lent` is the job on Spark that delivers in the daemon's stead.
`unadopted`: of how many messages jobs have written down what became of them, and nobody has taken that over
into the counts yet. `held`: nothing is received at the moment, since `brucectl drain --stop-intake` wants it.
`other_release`: a daemon of another release is running, whose shared page is of the format `page` where ours
is `own`, so that workers, brokers and rates are not known. `senders` counts by uid what was received, and
discarded at intake: "1001", or "unknown" for who came by TCP, or "other" for those beyond some 200. What was
discarded without room is in none of them. `inputs` are those that take messages ("datagram", "stream",
"tcp"), each with how many of its messages were `stored` and `refused`, and of its connections how many came,
are open, and ended: "clean" between two messages, "unclean" inside one, or closed by bruce for what they
sent, by its reason; `errors` of them failed, as by a reset. All this counts since the daemon was started in
order; one that was killed has a successor that goes on counting.

What librdkafka measured at a broker: `round_trip` of requests; `queue`, how long messages waited before they
went into a request, lingering included; `throttle`, how long the broker asked to be left alone. `count` and
`seconds` (their sum) are since the delivery worker was started; `median` and `p99`, in seconds, are of the
last second, null when there was nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SpoolView:
    """Which spool, and what it takes."""

    uuid: str
    directory: str
    bytes: int
    """Bytes of disk, spares included."""
    segments: int


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The next sequence number that is not yet at each level."""

    accepted: int
    written: int
    synced: int
    delivered: int


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A process of the daemon."""

    role: str
    pid: int
    restarts: int
    alive: bool
    """False for a moment also while it is being started again."""


@dataclass(frozen=True, slots=True)
class TimesView:
    """How long something took at a broker, in seconds."""

    count: int = 0
    seconds: float = 0.0
    """The sum of all."""
    median: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker, as the delivery worker has it."""

    id: int
    state: str
    offset: int
    """The lowest sequence routed to it that is not resolved."""
    in_flight: int
    acknowledged: int
    """Messages, since the delivery worker was started."""
    round_trip: TimesView = TimesView()
    queue: TimesView = TimesView()
    throttle: TimesView = TimesView()


@dataclass(frozen=True, slots=True)
class AckView:
    """The acknowledger at work."""

    taken: int
    """Datagrams, malformed ones included."""
    replied: int
    dropped: int
    """Replies for which a client had no room, or that had no client any more."""
    waiting: int
    """Messages that are not yet where their senders want to hear of."""
    refused: int
    """Messages that were not taken, the spool being full or by a rule; they count as received nowhere."""


@dataclass(frozen=True, slots=True)
class FullView:
    """What has no room."""

    what: str
    """max_bytes, min_free_bytes, disk or quota."""
    topic: str | None
    """Whose quota."""
    since: str
    """When that began, as 2026-11-21T17:00:00Z."""
    sentence: str


@dataclass(frozen=True, slots=True)
class LentView:
    """A job on Spark that delivers."""

    pid: int
    """Of its driver."""
    host: str
    since: str
    """When it got delivery, as 2026-11-21T17:00:00Z."""
    until: int
    """The next sequence number that was not committed then."""


@dataclass(frozen=True, slots=True)
class OtherRelease:
    """A daemon whose shared page cannot be read by this release."""

    pid: int
    """As it stands in the spool's lock; 0: nothing does."""
    page: str
    """The format of its page."""
    own: str
    """That of this release."""

    @property
    def sentence(self) -> str:
        """What it is, and what to do."""
        return (
            f"a daemon of another release is running (process {self.pid}; its page is {self.page}, ours is "
            f"{self.own}): restart the daemon, or use the brucectl of its release"
        )


@dataclass(frozen=True, slots=True)
class SenderView:
    """What a user sent."""

    sender: str
    """The uid; unknown, or other."""
    received: int
    discarded: dict[str, int]
    """At intake, by reason."""


@dataclass(frozen=True, slots=True)
class ConnectionsView:
    """Those of one input."""

    accepted: int
    open: int
    """Those whose messages are not all stored yet included."""
    closed: dict[str, int]
    """By how they ended."""
    errors: int


@dataclass(frozen=True, slots=True)
class InputView:
    """A kind of input."""

    input: str
    """datagram, stream or tcp."""
    stored: int
    refused: int
    """At intake; not for want of room."""
    connections: ConnectionsView | None
    """None of datagrams."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that `status` shows."""

    spool: SpoolView
    watermarks: Watermarks
    received: int
    delivered: int
    discarded: dict[str, int]
    backlog: int
    full: list[FullView]
    """Empty while there is room, and when no daemon runs."""
    disk: str | None
    """What is wrong with the disk, in one sentence; None when nothing is known to be."""
    workers: list[WorkerView]
    """Empty when no daemon runs."""
    brokers: list[BrokerView]
    trouble: str | None
    """Why nothing can be sent, or not to some topics: what, where, what to do. None without a daemon."""
    dead_lettered: int
    """How many of the discarded are in the dead-letter topic."""
    acknowledgements: AckView | None
    """None where [ingest] ack_socket is off."""
    lent: LentView | None
    """None while no job delivers."""
    unadopted: int
    """Messages that jobs have told of, and that still count as backlog."""
    held: bool
    """Senders wait, because an operator wants it."""
    other_release: OtherRelease | None
    """None when no daemon of another release runs."""
    senders: list[SenderView]
    """Those with most first; empty before anything was counted."""
    inputs: list[InputView]
    """Empty when no daemon runs."""

    def as_json(self) -> dict[str, Any]:
        """The documented shape."""
        return asdict(self)
