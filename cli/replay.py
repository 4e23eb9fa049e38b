"""Sending messages again that the spool still keeps: the router's own way to Kafka, with marks of its own.

A replay that was interrupted goes on when the same one is asked for again (cli.replay_state): what its marks
have is not sent again; and in transactions neither is what the last of them had, and nobody wrote down. The
spool is only read: a daemon beside it takes no notice, and a copy that may not be written is as good.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cli.config import EMBEDDED, Config
from cli.errors import BadArgument
from cli.progress import Show
from cli.replay_line import Line
from cli.replay_order import Order
from cli.replay_state import Begun, ReplayMarks, State, read_begun
from dispatch.client import check
from router.limits import Rate
from router.partition import Partitioners
from spool.catalogue import Catalogue
from spool.crash_point import reach
from spool.environment import LMDB_REFUSES
from spool.errors import SegmentsGone, SpoolBusy
from spool.identity import read_identity
from spool.layout import Layout
from spool.record import Topics
from spool.selection import Selection
from spool.sought import Sought, TopicCount, resolved_by
from spool.wanted import Wanted
from spool.wire import Reason, reason_name

SHOW_S = 0.2
"""Between two counts of what is left."""
_DAMAGED = reason_name(Reason.DAMAGED)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it, or would."""

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
    gone: int = 0
    """Removed to make room, while they were being replayed."""
    resume_from: int | None = None
    """Of a discard file, when the first that is left was discarded, ns since the epoch: no replay of it is
    kept in mind."""


class Count:
    """What a selection holds, read from one end to the other."""

    def __init__(self, layout: Layout, wanted: Wanted, show: Show) -> None:
        """`show` is told of messages that were read. Raises SegmentsGone, OSError."""
        self.sought = Sought()
        self._found: dict[str, TopicCount] = {}
        topics = Topics()
        reader = Selection(Catalogue(layout), topics, wanted)
        while batch := reader.next():
            rows = wanted.rows(batch)
            self.sought.add(reader.catalogue, batch.sequence[rows])
            for topic in np.unique(batch.topic[rows]).tolist():
                times = batch.received_ns[rows & (batch.topic == topic)]
                self._add(topics.names[topic].decode("utf-8", "backslashreplace"), times)
            show(*reader.progress)
        reader.close()
        self.kept_from, self.end = reader.kept_from, reader.sequence

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
        self._config, self._order = config, order
        self._wanted = order.wanted()
        self._layout = Layout(config.spool.directory)
        self._spool = read_identity(self._layout)
        servers = config.dispatch.kafka.get("bootstrap.servers", "")
        self.state = states / order.name(self._spool, servers)
        """Where this one is."""

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
                Layout(self.state).delivery, Catalogue(self._layout), begun.wanted.first, readonly=True
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
                with self._line(state, begun, count, rate) as line:
                    if not self._carry(line, count.sought, begun, show, deadline):
                        begun = self._pass_over(line, count.sought, begun, state)
                        continue
                    result = _result(count, begun, started, left=line.left(count.sought), line=line)
                reach("replay.sent")
                return result

    def forget(self) -> None:
        """Forget it, once somebody knows that all of it is sent: asked for again, it would be sent again."""
        reach("replay.told")
        # One that is at it already says the same, and forgets it.
        with suppress(SpoolBusy), _own(self.state) as state:
            state.finish()

    def _pass_over(self, line: Line, sought: Sought, begun: Begun, state: State) -> Begun:
        """Leave out what was removed to make room, and was not sent. Raises SegmentsGone when nothing was."""
        segments = Catalogue(self._layout).segments
        first = segments[0].first_sequence if segments else begun.wanted.end
        return state.pass_over(begun, first, line.left_below(sought, first))

    def _line(self, state: State, begun: Begun, count: Count, rate: float | None) -> Line:
        return Line(
            self._config,
            self._layout,
            self._spool,
            state,
            begun,
            to_topic=self._order.to_topic.encode(errors="surrogateescape") if self._order.to_topic else None,
            rates=self._rates(count, rate),
        )

    def _carry(self, line: Line, sought: Sought, begun: Begun, show: Show, deadline: float) -> bool:
        """Until all is done, or the time is over, or Ctrl-C; what is in flight then is waited for.

        False when segments were removed that it had not done with.
        """
        shown, total = 0.0, begun.messages - begun.gone
        whole = True
        try:
            while not line.done() and time.monotonic() < deadline:
                if time.monotonic() - shown >= SHOW_S:
                    shown = time.monotonic()
                    show(total - line.left(sought), total, line.trouble)
                line.turn()
        except KeyboardInterrupt:
            pass
        except SegmentsGone:
            whole = False
        line.settle()
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
    """The same messages, when others have come or gone."""
    return dataclasses.replace(
        wanted, first=max(wanted.first, count.kept_from), end=min(wanted.end, count.end)
    )


def _result(
    count: Count, begun: Begun | None, started: float, *, left: int, line: Line | None = None
) -> Replayed:
    """`line`: what they went by, if any went."""
    # Of a replay that was begun, some may be kept no longer.
    total = begun.messages if begun else count.sought.total
    gone = begun.gone if begun else 0
    refused = {reason_name(reason): n for reason, n in line.refused().items()} if line else {}
    # What is damaged could not be counted either.
    lost = sum(n for reason, n in refused.items() if reason != _DAMAGED)
    return Replayed(
        topics=count.topics,
        messages=total,
        sent=total - left - lost - gone,
        refused=refused,
        left=left,
        seconds=time.monotonic() - started,
        reachable=line is None or line.reachable,
        kept_from=count.kept_from,
        begun_ms=begun.since_ms if begun else None,
        trouble=line.trouble or None if line else None,
        gone=gone,
    )
