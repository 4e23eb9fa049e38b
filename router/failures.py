"""Messages that came back with an error: sent again, sent in small groups, or given up.

Kafka refuses a whole batch for one record in it, all with the same code. So what looks like a refusal for
good makes a message a *candidate*, and its partition goes on in groups, one at a time: half of what was
refused, a quarter, and so on. Only a message that was refused by itself is given up; all others are
delivered.

A partition with a failure is left alone until nothing of it is in flight: what follows the failed message
may fail as well, and must then go again behind it.

A producer that failed fatally is replaced by another (`ProducerRebuild`). `Outages` knows the brokers that
come back after a while.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dispatch.client import KafkaClient
from dispatch.errors import name_of
from dispatch.pool import Outcomes, Pool
from dispatch.retry import Action, Decision, decide, needs_people
from dispatch.tables import State
from router.timing import DECLINED_S, FIRST_REBUILD_S, LONGEST_REBUILD_S, OUTAGE_S, PAUSE_S, QUIET_S, STOP_S
from spool.format.wire import Reason
from spool.throttle import Throttle
from spool.words import counted

_log = logging.getLogger("bruce.router")

Sequences = npt.NDArray[np.int64]
Flats = npt.NDArray[np.int32]


class Failed(NamedTuple):
    """Some of the failed messages."""

    sequence: Sequences
    flat: Flats


class Refused(NamedTuple):
    """Some that are given up."""

    sequence: Sequences
    flat: Flats
    first_ms: list[int]
    """When each was refused first, in ms since the epoch."""


class Verdict(NamedTuple):
    """The next steps."""

    resend: Failed
    discard: dict[int, Refused]
    """By reason."""
    refresh: bool
    """Ask for metadata first."""


@dataclass(slots=True)
class Bisection:
    """One partition that Kafka refused something of."""

    candidates: dict[int, int] = field(default_factory=dict)
    """Sequence -> when it was refused first, in ms since the epoch."""
    alone: int = -1
    """The sequence of the message that is out by itself."""
    first: int = -1
    """The first message of the group that is out, or was."""
    limit: int = 1
    """Messages in that group, at most."""
    refused: int = 0
    """Refused since it went out."""
    gave_up: bool = False
    """Whether it was one message, refused for good."""

    def next_group(self, first: int) -> int:
        """How many may go, `first` being the first: half of what was refused, or twice what was not.

        Behind a message that was given up the next one goes alone, too: bad ones often come together.
        """
        if self.refused:
            self.limit = max(1, self.refused // 2)
        elif first != self.first and not self.gave_up:
            self.limit *= 2
        self.first, self.refused, self.gave_up = first, 0, False
        return self.limit


class Failures:
    """Which partitions, by flat number, are to be treated with care, and until when."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bisections: dict[int, Bisection] = {}
        self._emptying: set[int] = set()
        """They wait until nothing of them is in flight."""
        self._until: dict[int, float] = {}
        self.stopped: dict[int, int] = {}
        """Partitions that wait until people mend something, and the code that says so."""
        self._throttle = Throttle(QUIET_S, clock=clock)

    def judge(self, sequence: Sequences, code: npt.NDArray[np.int32], flat: Flats) -> Verdict:
        """Decide about failed messages; columns of one length."""
        discard: dict[int, dict[int, int]] = {}
        resend: list[int] = []
        refresh = False
        for row, (s, c, f) in enumerate(zip(sequence.tolist(), code.tolist(), flat.tolist(), strict=True)):
            decision = decide(c)
            refresh |= decision.action is Action.REFRESH
            self._emptying.add(f)
            self._say(c, decision)
            if needs_people(c):
                self.stopped[f] = c
            if decision.action is not Action.DISCARD:
                pause = STOP_S if decision.action is Action.STOP else PAUSE_S
                self._until[f] = self._clock() + pause
                resend.append(row)
            elif first_ms := self._refused_alone(f, s):
                discard.setdefault(int(decision.reason), {})[row] = first_ms
            else:
                resend.append(row)

        refused = {
            reason: Refused(sequence[list(rows)], flat[list(rows)], list(rows.values()))
            for reason, rows in discard.items()
        }
        return Verdict(Failed(sequence[resend], flat[resend]), refused, refresh)

    def write_off(self, sequence: Sequences, code: npt.NDArray[np.int32], flat: Flats) -> Verdict:
        """Decide about failed messages that may be sent once only: each is given up."""
        reasons = np.empty(len(code), np.int64)
        for c in np.unique(code).tolist():
            decision = decide(c)
            self._say(c, decision)
            given = decision.reason if decision.action is Action.DISCARD else Reason.UNCONFIRMED
            reasons[code == c] = given
        now = time.time_ns() // 1_000_000
        rows = {}
        for reason in np.unique(reasons).tolist():
            which = reasons == reason
            rows[reason] = Refused(sequence[which], flat[which], [now] * int(which.sum()))
        return Verdict(Failed(sequence[:0], flat[:0]), rows, refresh=True)

    def note_delivered(self, flats: Flats) -> None:
        """Something of these partitions was acknowledged."""
        if self.stopped:
            for flat in np.unique(flats).tolist():
                self.stopped.pop(flat, None)

    def _say(self, code: int, decision: Decision) -> None:
        """Once a code and QUIET_S: Kafka's answer, and what follows."""
        if self._throttle.due(code):
            _log.warning(
                "messages came back with %s: %s (%s)", name_of(code), decision.why, decision.action.value
            )

    def _refused_alone(self, flat: int, sequence: int) -> int:
        """When it was refused first, if the refusal is to be believed; 0: it is a candidate from now on."""
        now = time.time_ns() // 1_000_000
        bisection = self._bisections.setdefault(flat, Bisection())
        if bisection.alone == sequence:
            bisection.alone, bisection.refused, bisection.gave_up = -1, 0, True
            return bisection.candidates.pop(sequence, now)
        bisection.candidates.setdefault(sequence, now)
        bisection.refused += 1
        return 0

    def decline(self, flats: Flats) -> None:
        """Librdkafka itself did not take a message of these partitions."""
        self._until.update(dict.fromkeys(flats.tolist(), self._clock() + DECLINED_S))

    def single_out(self, sequence: Sequences, wanted: npt.NDArray[np.bool_], flat: Flats) -> None:
        """Bring candidates back to the partition that they were refused from, wherever they could go.

        Sent elsewhere, they would have that partition's messages refused as well.
        """
        for partition, bisection in self._bisections.items():
            candidates = np.fromiter(bisection.candidates, np.int64)
            flat[wanted & np.isin(sequence, candidates)] = partition

    def group(self, sequence: Sequences, flat: Flats) -> list[int]:
        """Of partitions with candidates, leave one group in `flat`; the others become -1.

        `flat` has the open messages of ready partitions, in log order from the first open one on. Returns
        the partitions that are not to go on before the group has had its outcomes.
        """
        closed = []
        for partition, bisection in list(self._bisections.items()):
            rows = np.flatnonzero(flat == partition)
            if len(rows) == 0:
                continue
            first = int(sequence[rows[0]])
            # Those before the first open message were delivered after all.
            bisection.candidates = {s: ms for s, ms in bisection.candidates.items() if s >= first}
            if not bisection.candidates:
                del self._bisections[partition]
                continue
            limit = bisection.next_group(first)
            bisection.alone = first if limit == 1 or len(rows) == 1 else -1
            flat[rows[limit:]] = -1
            closed.append(partition)
        return closed

    def with_candidates(self) -> list[int]:
        """The partitions with candidates."""
        return list(self._bisections)

    def forget(self, flats: Flats) -> None:
        """Nothing of these partitions is open any more, or they are gone."""
        for flat in flats.tolist():
            self._bisections.pop(flat, None)
            self.stopped.pop(flat, None)

    def patient(self, count: int, in_flight: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """bool[count] by flat number: neither paused, nor waiting for what is in flight."""
        out = np.ones(count, np.bool_)
        now = self._clock()
        self._until = {flat: until for flat, until in self._until.items() if until > now}
        out[list(self._until)] = False
        self._emptying = {flat for flat in self._emptying if in_flight[flat] > 0}
        for flat in (*self._emptying, *self._bisections):
            out[flat] &= in_flight[flat] == 0
        return out


class ProducerRebuild:
    """Builds a new producer in place of one that failed fatally, after its last reports."""

    def __init__(
        self, client: KafkaClient, pool: Pool, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client, self._pool, self._clock = client, pool, clock
        self._since: float | None = None
        self._renewed_at, self._pause_s = 0.0, 0.0

    def note_delivered(self) -> None:
        """A producer delivers: should it fail, another takes its place at once."""
        self._pause_s = 0.0

    def attempt(self, in_flight: int) -> Outcomes | None:
        """Once it is time: what was in flight, to be sent again in order by the new producer.

        A message without a report may be in Kafka all the same: it is waited for, for a while. Hand nothing
        over meanwhile.
        """
        assert self._client.fatal
        if self._since is None:
            self._since = self._clock()
            _log.error("the producer failed fatally (%s); creating a new one", self._client.fatal.text)
        now = self._clock()
        if self._pool.busy or (in_flight and now - self._since < self._pool.last_reports_s):
            return None
        if now - self._renewed_at < self._pause_s:
            return None
        self._pause_s = min(LONGEST_REBUILD_S, max(FIRST_REBUILD_S, 2 * self._pause_s))
        lost = self._pool.rebuild()
        self._since, self._renewed_at = None, self._clock()
        _log.warning("a new producer goes on; %s had no report", counted(len(lost.rows), "message"))
        return lost


class Outages:
    """Since when each broker has taken nothing: when it is back, the backlog begins to go out.

    At the start all of them were away.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[int, float] = {}
        self._begun = False

    def last(self) -> bool:
        """Whether one has been away for so long, and still was at the last look; or all, since the start."""
        since = min(self._since.values(), default=np.inf)
        return not self._begun or self._clock() - since >= OUTAGE_S

    def ended(self, brokers: npt.NDArray[Any]) -> bool:
        """Whether one of `brokers` (dispatch.tables.ROW[count]) has come back since the last look."""
        now = self._clock()
        healthy = 0
        away = [0.0]
        for broker, state in zip(brokers["id"].tolist(), brokers["state"].tolist(), strict=True):
            if state != State.HEALTHY:
                self._since.setdefault(broker, now)
                continue
            healthy += 1
            if broker in self._since:
                away.append(now - self._since.pop(broker))
        first = healthy > 0 and not self._begun
        self._begun |= first
        return first or max(away) >= OUTAGE_S
