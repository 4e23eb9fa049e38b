"""Sending messages again: those that the spool still keeps, or those that the discard file has.

The spool's messages go the router's own way to Kafka, with marks of their own. A replay that was interrupted
goes on when the same command is given again (cli.replay.state): messages that its marks have are not sent
again, and in transactions neither are those of the last transaction, whose marks were not written. The spool
is only read: a daemon beside it takes no notice, and a copy without write permission is as good.

Messages of the discard file go to the daemon's socket, as new messages.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cli.config.config import EMBEDDED, Config
from cli.replay.connection import ReplayConnection
from cli.replay.sending import Address, send_all
from cli.replay.state import Begun, Order, ReplayMarks, State, read_begun
from cli.terminal.errors import BadArgument
from cli.terminal.progress import Show
from dispatch.client import check
from router.limits import Rate
from router.partition import Partitioners
from spool.errors import SegmentsGone, SpoolBusy
from spool.format.batch import Topics, by_topic
from spool.format.wire import Reason, reason_name, split_topic, with_topic
from spool.index.environment import LMDB_REFUSES
from spool.index.identity import read_identity
from spool.index.segment_list import SegmentList
from spool.layout import Layout, older
from spool.marks.discard_file import GivenUp, read_discard_file
from spool.read.files import Span
from spool.read.selection import Selection, Sought, TopicCount, Wanted, resolved_by
from spool.storage.failpoint import reach

SHOW_S = 0.2
"""Between two counts of what is left."""
_DAMAGED = reason_name(Reason.DAMAGED)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay, or of its count."""

    topics: list[TopicCount]
    messages: int
    sent: int
    """Acknowledged; by this replay before it was interrupted, too."""
    refused: dict[str, int]
    """By reason."""
    left: int
    seconds: float
    reachable: bool
    """At the end there was a broker that takes messages, or the time was over before one was asked."""
    kept_from: int
    """The first sequence number that is kept: what was asked for below it is gone."""
    begun_ms: int | None = None
    """When it began, ms since the epoch, where one was begun that is not finished."""
    trouble: str | None = None
    """At the end, why nothing could be sent."""
    interrupted: bool = False
    """By Ctrl-C."""
    gone: int = 0
    """Messages that were removed to make room, while they were being replayed."""
    unreadable: int = 0
    """Messages on the way that cannot be read, and may be meant or not."""
    resume_from: int | None = None
    """Of a discard file, when the first that is left was discarded, ns since the epoch: no replay of it is
    kept in mind."""


class Count:
    """The messages of a selection, counted by reading it from one end to the other."""

    def __init__(self, layout: Layout, wanted: Wanted, show: Show) -> None:
        """`show` is called with the progress of reading. Raises SegmentsGone, OSError."""
        self.sought = Sought()
        self._found: dict[str, TopicCount] = {}
        self.unreadable = 0
        """Messages on the way that are damaged: any may be meant."""
        topics = Topics()
        reader = Selection(SegmentList(layout), topics, wanted)
        while batch := reader.next():
            rows = wanted.rows(batch)
            self.sought.add(reader.segment_list, batch.sequence[rows])
            times = batch.received_ns[rows]
            for topic, at in by_topic(batch.topic[rows]):
                self._add(topics.names[topic].decode("utf-8", "backslashreplace"), times[at])
            show(*reader.progress)
            self._note_unreadable(reader, wanted)
        self._note_unreadable(reader, wanted)
        reader.close()
        self.kept_from, self.end = reader.kept_from, reader.sequence

    def _note_unreadable(self, reader: Selection, span: Span) -> None:
        for one in reader.take_damage():
            self.unreadable += max(0, min(one.end, span.end) - max(one.first, span.first))

    def _add(self, topic: str, times: np.ndarray) -> None:
        before = self._found.get(topic) or TopicCount(topic, 0, int(times[0]), int(times[0]))
        self._found[topic] = TopicCount(
            topic,
            before.messages + len(times),
            min(before.first_ns, int(times.min())),
            max(before.last_ns, int(times.max())),
        )

    @property
    def topics(self) -> list[TopicCount]:
        """By name."""
        return [count for _, count in sorted(self._found.items())]


class Replay:
    """One replay of one spool."""

    def __init__(self, config: Config, order: Order, states: Path) -> None:
        """`states`: where replays that are not finished are kept in mind. Raises NoSpool, BadArgument."""
        self._config, self._order, self._interrupted = config, order, False
        self._wanted = order.wanted()
        self._layout = Layout(config.spool.directory)
        self._spool = read_identity(self._layout)
        servers = config.dispatch.kafka.get("bootstrap.servers", "")
        self.state = states / order.name(self._spool, servers)
        """The directory of this replay's state."""

    def count(self, show: Show) -> Replayed:
        """Read everything that is asked for, and send nothing. Raises SegmentsGone, BadArgument, OSError."""
        started = time.monotonic()
        begun = read_begun(self.state)
        count = Count(self._layout, begun.wanted if begun else self._wanted, show)
        left = self._left_of(begun, count.sought) if begun else count.sought.total
        return _result(count, begun, started, left=left)

    def _left_of(self, begun: Begun, sought: Sought) -> int:
        try:
            marks = ReplayMarks(
                Layout(self.state).delivery, SegmentList(self._layout), begun.wanted.first, readonly=True
            )
        except LMDB_REFUSES:
            return sought.total
        try:
            return sought.left(resolved_by(marks))
        finally:
            marks.close()

    def send(self, show: Show, timeout_s: float | None, rate: float | None = None) -> Replayed:
        """Count, then send, until everything is acknowledged or refused, or the time is over, or Ctrl-C.

        With nothing left, say so, and then `forget` it.

        `rate`: messages a second, at most. Raises BadArgument when there is no Kafka to send to, SpoolBusy
        when another process sends just these, SegmentsGone, BadPartitioner, BadProperty, DispatchError.
        """
        if self._config.dispatch.kafka.get("bootstrap.servers") == EMBEDDED:
            raise BadArgument(
                "the embedded Kafka is known to `bruce run` alone: "
                'name brokers in [kafka] "bootstrap.servers"'
            )
        check(self._config.dispatch)
        Partitioners(self._config.partitioners)
        started = time.monotonic()
        deadline = started + timeout_s if timeout_s is not None else float("inf")
        with _own(self.state) as state:
            wanted = state.begun.wanted if state.begun else self._wanted
            count = Count(self._layout, wanted, lambda _done, _total, _trouble="": None)
            if not count.sought.total:
                return _result(count, state.begun, started, left=0)
            begun = state.begun or state.begin(_settled(wanted, count), count.sought.total)
            while True:
                with self._connect(state, begun, count, rate) as connection:
                    if not self._carry(connection, count.sought, begun, show, deadline):
                        begun = self._pass_over(connection, count.sought, begun, state)
                        continue
                    left = connection.left(count.sought)
                    result = _result(count, begun, started, left=left, connection=connection)
                    result = replace(result, interrupted=self._interrupted)
                reach("replay.sent")
                return result

    def forget(self) -> None:
        """Forget it, once its user knows that all is sent: the same command would then send all again."""
        reach("replay.told")
        # One that is at it already says the same, and forgets it.
        with suppress(SpoolBusy), _own(self.state) as state:
            state.finish()

    def _pass_over(self, connection: ReplayConnection, sought: Sought, begun: Begun, state: State) -> Begun:
        """Leave out what was removed to make room, and was not sent. Raises SegmentsGone when nothing was."""
        segments = SegmentList(self._layout).segments
        first = segments[0].first_sequence if segments else begun.wanted.end
        return state.pass_over(begun, first, connection.left_below(sought, first))

    def _connect(self, state: State, begun: Begun, count: Count, rate: float | None) -> ReplayConnection:
        return ReplayConnection(
            self._config,
            self._layout,
            self._spool,
            state,
            begun,
            to_topic=self._order.to_topic.encode(errors="surrogateescape") if self._order.to_topic else None,
            rates=self._rates(count, rate),
        )

    def _carry(
        self, connection: ReplayConnection, sought: Sought, begun: Begun, show: Show, deadline: float
    ) -> bool:
        """Until all is done, or the time is over, or Ctrl-C; what is in flight then is waited for.

        False when segments were removed that it had not done with.
        """
        shown, total = 0.0, begun.messages - begun.gone
        whole = True
        try:
            while not connection.done() and time.monotonic() < deadline:
                if time.monotonic() - shown >= SHOW_S:
                    shown = time.monotonic()
                    show(total - connection.left(sought), total, connection.trouble)
                connection.turn()
        except KeyboardInterrupt:
            self._interrupted = True
        except SegmentsGone:
            whole = False
        connection.settle()
        return whole

    def _rates(self, count: Count, rate: float | None) -> Mapping[str, Rate]:
        """Those of the daemon, nothing being discarded; and each topic's share of `rate`."""
        rates = {topic: Rate(given.messages) for topic, given in self._config.rates.items()}
        if rate is None:
            return rates
        to = self._order.to_topic
        shares = {to: 1.0} if to else {c.topic: c.messages / count.sought.total for c in count.topics}
        for topic, share in shares.items():
            own = rates.get(topic)
            rates[topic] = Rate(min(rate * share, own.messages) if own else rate * share)
        return rates


@contextmanager
def _own(directory: Path) -> Iterator[State]:
    state = State(directory)
    try:
        yield state
    finally:
        state.close()


def _settled(wanted: Wanted, count: Count) -> Wanted:
    """The same selection with fixed ends, so that it stays the same when messages come or go."""
    return dataclasses.replace(
        wanted, first=max(wanted.first, count.kept_from), end=min(wanted.end, count.end)
    )


def _result(
    count: Count,
    begun: Begun | None,
    started: float,
    *,
    left: int,
    connection: ReplayConnection | None = None,
) -> Replayed:
    """`connection`: what they went by, if any went."""
    # Of a replay that was begun, some may be kept no longer.
    total = begun.messages if begun else count.sought.total
    gone = begun.gone if begun else 0
    refused = {reason_name(reason): n for reason, n in connection.refused().items()} if connection else {}
    # Damaged messages could not be counted either.
    lost = sum(n for reason, n in refused.items() if reason != _DAMAGED)
    return Replayed(
        topics=count.topics,
        messages=total,
        sent=total - left - lost - gone,
        refused=refused,
        left=left,
        seconds=time.monotonic() - started,
        reachable=connection is None or connection.reachable,
        kept_from=count.kept_from,
        begun_ms=begun.since_ms if begun else None,
        trouble=connection.trouble or None if connection else None,
        gone=gone,
        unreadable=count.unreadable,
    )


class Resend:
    """Sends the messages of a discard file that a span asks for, by sequence, time of discard and topic."""

    def __init__(self, path: Path | None, span: Span, to_topic: str | None) -> None:
        """Raises BadArgument when there is no such file, BadSpool, OSError."""
        if path is None:
            raise BadArgument("no discard file is kept: name one in [dispatch] discard_file")
        if not path.exists() and not older(path).exists():
            raise BadArgument(
                f"there is no discard file {path}: nothing was discarded since it was configured"
            )
        self._started = time.monotonic()
        self._to_topic = to_topic.encode(errors="surrogateescape") if to_topic else None
        self._messages = [one for one in read_discard_file(path) if _asked_for(one, span)]

    def count(self) -> Replayed:
        """Send nothing."""
        return self._result(0)

    def send(
        self,
        socket: Path,
        stream: Address | None,
        show: Show,
        timeout_s: float | None,
        most_bytes: int | None = None,
    ) -> Replayed:
        """Hand all of them to the daemon, waiting for room. Raises what cli.replay.sending.send_all does.

        `most_bytes`: as send_all takes it.
        """
        until = self._started + timeout_s if timeout_s is not None else math.inf

        def datagrams() -> Iterator[bytes]:
            for taken, one in enumerate(self._messages):
                show(taken, len(self._messages))
                yield one.datagram if self._to_topic is None else with_topic(one.datagram, self._to_topic)

        return self._result(send_all(socket, datagrams(), stream, most_bytes=most_bytes, until=until))

    def _result(self, sent: int) -> Replayed:
        return Replayed(
            topics=_count(self._messages),
            messages=len(self._messages),
            sent=sent,
            refused={},
            left=len(self._messages) - sent,
            seconds=time.monotonic() - self._started,
            reachable=True,
            kept_from=0,
            resume_from=min((one.time_ns for one in self._messages[sent:]), default=None),
        )


def _count(messages: Iterable[GivenUp]) -> list[TopicCount]:
    """By topic; the times are those of the discard."""
    times: dict[bytes, list[int]] = {}
    for one in messages:
        times.setdefault(split_topic(one.datagram)[1], []).append(one.time_ns)
    return [
        TopicCount(name.decode("utf-8", "backslashreplace"), len(when), min(when), max(when))
        for name, when in sorted(times.items())
    ]


def _asked_for(one: GivenUp, span: Span) -> bool:
    if not (span.first <= one.sequence < span.end and span.from_ns <= one.time_ns < span.to_ns):
        return False
    return not span.topics or split_topic(one.datagram)[1] in span.topics
