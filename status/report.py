"""The report for operators: the shape of `brucectl status --json`, which other tools rely on.

    {"version": 1, "taken": TIME, "healthy": true or false,
     "unhealthy": [{"condition", "sentence"}],
     "spool" ... "held": as below,
     "rates": {"minute", "quarter_hour": null or {"seconds", "received", "delivered", "discarded"}},
     "topics": [{"topic", "backlog"}], "topics_estimated": true or false,
     "oldest": null or {"sequence", "received", "age_seconds"},
     "room": null or {"capacity_bytes", "waiting_bytes", "hours_until_full"},
     "last_trouble": null or {"sentence", "seen"}, "awaited": null or a sentence,
     "witness": null or {"written": null or TIME, "problem": null or a sentence,
                         "tiers": [{"tier", "lag", "records", "skipped", "error": null or a sentence,
                                    "spools": n, "judged", "missing", "late", "duplicated",
                                    "altered_blocks", "uncompared_blocks", "verdict"}]}}

Times are UTC. Rates are messages a second over the `seconds` that are known, null where no daemon has been
counting; a topic that is not UTF-8 is in base64 under `topic_base64`. `topics` are the 500 with
most backlog, "(others)" the rest, and "(illegal)" all that no topic of Kafka can be called; when they are
`topics_estimated`, their sum is exact and each of them is not. `oldest` is the
message that has waited longest. `capacity_bytes` is the disk that undelivered messages may take by max_bytes
and min_free_bytes, null where neither the daemon nor the configuration tells these; `hours_until_full` is
null while they do not grow. `last_trouble` says why nothing could be sent, the last time in this run of the
host; `trouble` says why nothing can be sent now. `awaited` names topics that Kafka does not have yet and
whose messages are held meanwhile; when their grace time is over they are a `trouble`, or their messages are
discarded. `witness` is the verdict of the witness that [witness] directory names, null where it names none:
by tier (a cluster, or a lake), with the sums of all `spools` that it watches. The messages `judged` must be
in the tier by now, and `missing` are not; `late` were delivered, and are not there yet; `duplicated` are
there more than once; of blocks of 4,096 messages the content is altered, or cannot be compared. `lag` counts
offsets that are not read yet, `records` those of bruce that are, `skipped` the offsets that were deleted
unread; `error` says why a tier cannot be read now. `verdict` is "complete" when none is missing, late or
altered. `problem` says that there is no document of a witness at work.

One look at a bruce, a `Snapshot`, gives its first part:

    {"spool": {"uuid", "directory", "bytes", "segments"},
     "watermarks": {"accepted", "written", "synced", "delivered"},
     "received", "delivered", "discarded": {REASON: n}, "backlog",
     "full": [{"what", "topic", "since", "sentence"}], "disk": null or a sentence,
     "lost_inputs": null or a sentence,
     "workers": [{"role", "pid", "restarts", "alive", "silent_seconds", "waits_for_disk"}],
     "brokers": [{"id", "state", "offset", "in_flight", "acknowledged",
                  "round_trip", "queue", "throttle": {"count", "seconds", "median", "p99"}}],
     "trouble": null or a sentence, "dead_lettered": n,
     "acknowledgements": null or {"taken", "replied", "dropped", "waiting", "refused"},
     "kafka": null or {"requests", "stored", "repeated", "refused", "waiting"},
     "lent": null or {"pid", "host", "since", "until"}, "unadopted": n, "held": bool,
     "other_release": null or {"pid", "page", "own"},
     "senders": [{"sender", "received", "discarded": {REASON: n}}],
     "inputs": [{"input", "stored", "refused",
                 "connections": null or {"accepted", "open", "closed": {HOW: n}, "errors"}}]}

Watermarks are the next sequence number that is not yet at the level. Counts are those of the spool's whole
life; `received = delivered + discarded + backlog` always holds. `trouble` says why nothing can be sent, or
not to some topics; `disk` names the operation that the disk refuses; `full` lists limits that are reached.
`lost_inputs` names sockets that programs do not reach, since their paths lead elsewhere. `silent_seconds`
says for how long a worker has done nothing: null while it works, and for those that are not watched.
`dead_lettered` of the discarded messages are in the dead-letter topic. `acknowledgements` are those of
[ingest] ack_socket, since the daemon was started; `kafka` are the ProduceRequests of Kafka inputs, and of
their batches those that were stored, answered again, and refused. `lent` is the job on Spark that delivers
instead of the daemon. `unadopted` counts messages whose outcomes jobs have written down, and which are not in
the counts yet. `held`: nothing is received at the moment, because of `brucectl drain --stop-intake`.
`other_release`: a daemon of another release is running, whose shared state has the format `page` while ours
is `own`, so workers, brokers and rates are not known. `senders` counts by uid the messages that were
received, and discarded at intake: "1001", or "unknown" for TCP, or "other" for uids beyond some 200. Messages
that were discarded for want of room are in none of them. `inputs` are those that take messages ("datagram",
"stream", "tcp", "kafka"), each with the number of its messages that were `stored` and `refused`, and of its
connections the number that came, are open, and ended: "clean" between two messages, "unclean" inside one, or
closed by bruce, by its reason; `errors` of them failed, for example by a reset. All this counts since the
daemon was started in order; the successor of a killed one goes on counting.

Of a broker, librdkafka measures: `round_trip` of requests; `queue`, how long messages waited before they went
into a request, lingering included; `throttle`, how long the broker asked to be left alone. `count` and
`seconds` (their sum) are since the delivery worker was started; `median` and `p99`, in seconds, are of the
last second, null when there was nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dispatch.topic_settings import Lateness
from spool.words import MOST_TOPIC, clipped
from status.witness import WitnessView

VERSION = 1


@dataclass(frozen=True, slots=True)
class SpoolView:
    """The spool, and the disk that it takes."""

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
    silent_seconds: float | None = None
    """For how long it has done nothing; None while it works, and for one that is not watched."""
    waits_for_disk: bool = False
    """In this silence."""

    @property
    def hangs(self) -> bool:
        """Whether it does nothing, and does not wait for the disk."""
        return self.silent_seconds is not None and not self.waits_for_disk

    @property
    def sentence(self) -> str:
        """The problem with it; empty if it works."""
        if not self.alive:
            return f"the {self.role} worker is not running"
        if self.silent_seconds is None:
            return ""
        does = "waited for the disk" if self.waits_for_disk else "done nothing"
        return f"the {self.role} worker ({self.pid}) has {does} for {self.silent_seconds:.0f} s"


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
class KafkaView:
    """The Kafka inputs at work."""

    requests: int
    """ProduceRequests."""
    stored: int
    """Batches of them."""
    repeated: int
    """Batches that an idempotent producer sent again, and that were stored before."""
    refused: int
    """Batches that were answered with an error."""
    waiting: int
    """Clients that wait for an answer."""


@dataclass(frozen=True, slots=True)
class FullView:
    """A limit that is reached."""

    what: str
    """max_bytes, min_free_bytes, disk or quota."""
    topic: str | None
    """The topic of the quota."""
    since: str
    """When that began, as 2026-11-21T17:00:00Z."""
    sentence: str


@dataclass(frozen=True, slots=True)
class LentView:
    """A job on Spark that delivers."""

    pid: int
    """Of its driver; 0, and no host, for a user who may not read the lease."""
    host: str
    since: str
    """When it got delivery, as 2026-11-21T17:00:00Z."""
    until: int
    """The next sequence number that was not committed then."""


@dataclass(frozen=True, slots=True)
class OtherRelease:
    """A daemon whose shared state cannot be read by this release."""

    pid: int
    """From the spool's lock; 0: it has none, or may not be read."""
    page: str
    """The format of its page."""
    own: str
    """That of this release."""

    @property
    def sentence(self) -> str:
        """The situation, and what to do."""
        process = f"process {self.pid}" if self.pid else "its process is not known"
        return (
            f"a daemon of another release is running ({process}; its page is {self.page}, ours is "
            f"{self.own}): restart the daemon, or use the brucectl of its release"
        )


@dataclass(frozen=True, slots=True)
class SenderView:
    """Counts of one user."""

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
    """datagram, stream, tcp or kafka."""
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
    """The known fault of the disk, in one sentence; None without one."""
    lost_inputs: str | None
    """The sockets that programs do not reach, in one sentence; None when they reach all."""
    workers: list[WorkerView]
    """Empty when no daemon runs."""
    brokers: list[BrokerView]
    trouble: str | None
    """Why nothing can be sent, or not to some topics, and what to do. None without a daemon."""
    dead_lettered: int
    """How many of the discarded are in the dead-letter topic."""
    acknowledgements: AckView | None
    """None where [ingest] ack_socket is off."""
    kafka: KafkaView | None
    """None where there is no Kafka input."""
    lent: LentView | None
    """None while no job delivers."""
    unadopted: int
    """Messages in outcome files of jobs, which still count as backlog."""
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


@dataclass(frozen=True, slots=True)
class RateView:
    """Messages a second."""

    seconds: float
    """Over how long."""
    received: float
    delivered: float
    discarded: float


@dataclass(frozen=True, slots=True)
class OldestView:
    """The message that has waited longest."""

    sequence: int
    received: str
    """As 2026-11-21T17:00:00Z."""
    age_seconds: float


@dataclass(frozen=True, slots=True)
class RoomView:
    """Room for waiting messages."""

    capacity_bytes: int
    waiting_bytes: int
    hours_until_full: float | None
    """At the present rate; None while it does not grow."""


@dataclass(frozen=True, slots=True)
class LastTrouble:
    """Why nothing could be sent, when that was so last."""

    sentence: str
    seen: str


@dataclass(frozen=True, slots=True)
class Complaint:
    """A condition for which a spool is called unhealthy."""

    condition: str
    """One word for programs; see status.health."""
    sentence: str


@dataclass(frozen=True, slots=True)
class Report:
    """A snapshot, and the figures that follow from it."""

    taken: str
    snapshot: Snapshot
    minute: RateView | None
    quarter_hour: RateView | None
    topics: tuple[tuple[bytes, int], ...]
    """(topic, messages that wait), those with most first."""
    topics_estimated: bool
    oldest: OldestView | None
    room: RoomView | None
    last_trouble: LastTrouble | None
    marked: bool
    """False: there are marks, and they cannot be read."""
    discarded_lately: int = 0
    """Messages, in the time that `quarter_hour` has the rate of."""
    lateness: Mapping[bytes, Lateness] = field(default_factory=dict)
    """How late messages of topics may come to Kafka, as the delivery worker learnt last."""
    oldest_records: Mapping[bytes, float] = field(default_factory=dict)
    """By topic, the age of the oldest message by its own timestamp, in seconds, where it may be too late."""
    awaited: str | None = None
    """The topics that may still come, in one sentence; None without any."""
    witness: WitnessView | None = None
    """None where no witness is configured."""

    def as_json(self, unhealthy: list[Complaint]) -> dict[str, Any]:
        """The documented shape."""
        return {
            "version": VERSION,
            "taken": self.taken,
            "healthy": not unhealthy,
            "unhealthy": [asdict(one) for one in unhealthy],
            **self.snapshot.as_json(),
            "rates": {"minute": _or_null(self.minute), "quarter_hour": _or_null(self.quarter_hour)},
            "topics": [{**named(topic), "backlog": count} for topic, count in most_of(self.topics)],
            "topics_estimated": self.topics_estimated,
            "oldest": _or_null(self.oldest),
            "room": _or_null(self.room),
            "last_trouble": _or_null(self.last_trouble),
            "awaited": self.awaited,
            "witness": self.witness.summary if self.witness else None,
        }


MOST_TOPICS = 500
"""Topics with a row, or series, of their own: senders name them, and a scraper keeps each name for weeks."""
OTHERS = b"(others)"
"""The name of all the rest; no topic of Kafka can be called so."""


def _or_null(view: RateView | OldestView | RoomView | LastTrouble | None) -> dict[str, Any] | None:
    return None if view is None else asdict(view)


def most_of(topics: Sequence[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """The first MOST_TOPICS of some topics, with their counts, and the sum of the rest as OTHERS."""
    yield from topics[:MOST_TOPICS]
    if len(topics) > MOST_TOPICS:
        yield OTHERS, sum(count for _, count in topics[MOST_TOPICS:])


def named(topic: bytes) -> dict[str, str]:
    """A topic under its name, or in base64 under another."""
    try:
        return {"topic": topic.decode("utf-8")}
    except UnicodeDecodeError:
        return {"topic_base64": base64.b64encode(topic).decode("ascii")}


def shown_name(topic: bytes) -> str:
    """A topic as a label can have it: bytes that are no UTF-8 are escaped, and a name that is longer is cut.

    Two topics may be shown alike; what is counted by such names is to be summed.
    """
    return clipped(topic.decode("utf-8", "backslashreplace"), MOST_TOPIC)
