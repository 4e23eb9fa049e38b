"""The loop from the log to the brokers and back.

Two readers go over the log. The *live* one hands over everything once, in order. A message that cannot go
then is not queued: its partition is held from there on, and the *catch-up* reader reads on there when the
broker has room, sends what is still open, and lets the partition rejoin the live path where the two meet.
Bits in `router.outcomes.acks` say what is open, so that nothing is sent twice and nothing is passed over
(`router.scheduler`).

`router.scheduler` decides which reader reads next. A topic that Kafka does not know waits by itself,
for a grace time. When it becomes known its partitions are held, so that its old messages go before its new
ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from dispatch.pool import Outcomes
from router.catch_up import CatchUps
from router.cluster.brokers import UNROUTED, BrokerView, Kafka, lowest_by_broker, view_brokers
from router.cluster.trouble import Cause, Trouble
from router.cluster.unknown_topics import Learnt, Strangers, UnknownTopics
from router.context import Delivered, Log, Rules, Sequences
from router.failures import Failures, Outages, ProducerRebuild
from router.outcomes.counts import DiscardNames
from router.outcomes.outcome_table import OutcomeTable
from router.outcomes.rejects import Rejection, Rejects
from router.outcomes.trace import Trace
from router.scheduler import BatchRouter, Scheduler
from router.timing import ASK_LEADERS_S, OBSERVE_S
from router.unreadable import UnreadableRanges
from spool.storage.failpoint import reach

NO_REJECTION = Rejection()


class Router:
    """Routes one spool into one cluster. For one thread; `step` never waits."""

    def __init__(
        self,
        log: Log,
        kafka: Kafka,
        acks: OutcomeTable,
        rules: Rules,
        *,
        rejection: Rejection = NO_REJECTION,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin at the low watermark. `rejection`: what becomes of messages that Kafka does not take."""
        self._live, self._catch_up_reader, self._committed = log.live, log.catch_up, log.committed
        self._client, self._pool = kafka.client, kafka.pool
        self._capacity, self._metadata = kafka.capacity, kafka.metadata
        self._acks, self._limits, self._partitioners = acks, rules.limits, rules.partitioners
        self._eviction, self._open_counts = log.eviction, log.open_counts
        self._failures = Failures(clock=clock)
        self._unknown = UnknownTopics(grace_s=rejection.grace_s, clock=clock)
        self._trouble = Trouble(self._client, self._metadata, grace_s=rejection.grace_s)
        self._rejects = Rejects(log.contents(), kafka, acks, self._trouble, rejection, clock=clock)
        self._rejects.count_by(DiscardNames(acks.discarded, rejection.names), log.open_counts)
        self._unreadable = UnreadableRanges(log, clock=clock)
        self._strangers = Strangers(
            self._live.topics, self._unknown, self._metadata, lambda: self._catch_ups.swept_all, clock=clock
        )
        self._batches = BatchRouter(log, kafka, rules, self._failures, self._strangers, self._rejects)
        self._history = self._batches.history
        self._judge = self._failures.write_off if acks.marks_first else self._failures.judge
        self._catch_ups = CatchUps(
            log, kafka, self._failures, self._limits, self._batches.loose, rules.bounds
        )
        self._scheduler = Scheduler(
            log, kafka, self._unknown, self._batches, self._catch_ups, self.commit, rules.bounds
        )
        self._outages = Outages(clock=clock)
        self._rebuild = ProducerRebuild(self._client, self._pool, clock=clock)
        self._clock, self._observed_at, self._asked_at = clock, 0.0, 0.0
        self._trace: Trace | None = None
        self._live.seek(acks.low_watermark)

    @property
    def read_position(self) -> int:
        """Everything below was handed over, is covered, or is resolved."""
        return self._live.sequence

    @property
    def handed_over(self) -> int:
        """Messages given to the producer since the start, those sent again included."""
        return self._batches.handed_over

    def follow(self, trace: Trace | None) -> None:
        """Report to this trace what happens to its messages."""
        self._trace = trace
        self._batches.follow(trace)
        self._acks.follow(trace)

    def step(self) -> bool:
        """Do what can be done without waiting; False when more can be done only after a change elsewhere."""
        self._take_cluster()
        more = self._note(outcomes := self._pool.collect()) > 0 and outcomes.more
        # Also while no producer may send: room is made without Kafka.
        evicts = self._evicts()
        if self._client.fatal and not self._pool.ended:
            more |= evicts
            self._trouble.note_finished(self._client.fatal.text)
            lost = self._rebuild.attempt(self.in_flight())
            if lost:
                self._note(lost)
                self._catch_ups.note_change()
        elif evicts:
            more = True
        else:
            self._observe()
            more |= self._reject()
            before = self.handed_over
            more |= self._scheduler.step(self._acks.low_watermark)
            if self.handed_over > before and not more and not self._client.lingers_by_choice:
                self._client.hurry()
        if self._acks.due():
            self._write_down()
        return more

    def _evicts(self) -> bool:
        """Give up what the spool has no room for; whether nothing else may be done meanwhile."""
        eviction = self._eviction
        if eviction is None:
            return False
        busy = False
        if not eviction.is_idle:
            if eviction.recalls() and self._pool.gives_back:
                self._note(self._pool.rebuild())
            busy = eviction.step(self._acks, self._pool, self.read_position)
        for reader in (self._live, self._catch_up_reader):
            if reader.sequence < eviction.done:
                reader.seek(eviction.done)
        return busy

    @property
    def at_rest(self) -> bool:
        """Whether a step has nothing to do before a change elsewhere: nothing waits, or is in flight."""
        return not (self._pool.in_flight() or self.awaits_more)

    @property
    def awaits_more(self) -> bool:
        """Whether anything but reports is waited for, some of which only a step finds out."""
        return bool(
            self._catch_ups.wanted
            or self._pool.closed
            or self._client.fatal
            or self._unknown.waiting
            or self._strangers.lists
            or self._rejects.lowest()
            or self._unreadable.lowest()
        )

    @property
    def has_room(self) -> bool:
        """Whether a step can do something with messages that are committed by now."""
        return self._scheduler.has_room

    @property
    def is_ordinary(self) -> bool:
        """Whether nothing but new messages and good reports is expected, which the fast path may take."""
        ruled = (
            self._trace or self._acks.marks_first or not self._pool.at_once or self._rejects.awaits_letters
        )
        failing = self._client.fatal or self._failures.stopped or self._catch_ups.wanted
        evicts = self._eviction is not None and not self._eviction.is_idle
        return not (ruled or failing or evicts) and self._batches.is_plain

    def take_over(self, done: Delivered) -> None:
        """Take note of what the fast path has done, and of what it leaves."""
        self._batches.handed_over += done.sent
        self._pool.note_sent(done.refused, held=done.held)
        if done.settled:
            self._note_reports()
            self._note_delivered()
        if done.error:
            self._batches.decline(self._pool.partitions.held(), done.error)
        self._note(done.reports)
        if done.event:
            self._client.take_event(done.event)

    # -- what became known ----------------------------------------------------------------------------

    def settle(self) -> int:
        """Write down what became known; how many messages that were."""
        return self._note(self._pool.collect())

    def _note(self, outcomes: Outcomes) -> int:
        """The same of outcomes, those of dead letters among them, from wherever they come."""
        count = len(outcomes.rows)
        if count == 0:
            return 0
        self._note_reports()
        if not self._note_plainly(outcomes):
            self._note_each(outcomes)
        return count

    def _note_reports(self) -> None:
        """There are reports, whatever they say: a pass may move something."""
        self._catch_ups.note_change()
        reach("mark.acknowledged")

    def _note_plainly(self, outcomes: Outcomes) -> bool:
        """Resolve them all by one compiled loop; False if one failed, or somebody wants to know of each.

        `_note_each` does all that it leaves.
        """
        if self._trace or self._open_counts or self._rejects.awaits_letters or self._failures.stopped:
            return False
        if not self._acks.resolve_reports(outcomes.rows):
            return False
        self._note_delivered()
        return True

    def _note_delivered(self) -> None:
        self._trouble.note_delivered()
        self._rebuild.note_delivered()

    def _note_each(self, outcomes: Outcomes) -> None:
        outcomes = outcomes.only(~self._rejects.settle(outcomes))
        if self._trace:
            self._trace.note_outcomes(outcomes)
        good = outcomes.code == 0
        self._acks.resolve(outcomes.sequence[good], outcomes.received_ns[good])
        if self._open_counts:
            self._open_counts.note_resolved(self._pool.partitions.topics_of(outcomes.flat[good]))
        if good.any():
            self._note_delivered()
            self._failures.note_delivered(outcomes.flat[good])
        if not good.all():
            self._fail(outcomes)

    def _fail(self, outcomes: Outcomes) -> None:
        """Give back what is to be sent again, discard what Kafka will never take."""
        bad = outcomes.code != 0
        verdict = self._judge(outcomes.sequence[bad], outcomes.code[bad], outcomes.flat[bad])
        for reason, refused in verdict.discard.items():
            self._rejects.add(refused.sequence, reason, self._names(refused.flat), refused.first_ms)
        resend = verdict.resend
        self._acks.give_back(resend.sequence)
        there = self._pool.partitions.exist(resend.flat)
        there &= ~np.isin(self._pool.partitions.topics_of(resend.flat), list(self._unknown.gone))
        self._pool.partitions.hold(resend.flat[there], resend.sequence[there])
        # Nothing will ever go to those that are gone: a pass finds another place for their messages, or none.
        if not there.all():
            self._catch_ups.come_by(int(resend.sequence[~there].min()))
        self._catch_ups.leave_out(resend.flat)
        if verdict.refresh:
            self._metadata.want([])

    def _names(self, flats: npt.NDArray[np.int32]) -> list[bytes]:
        """The topic of each of these partitions."""
        return [self._live.topics.names[n] for n in self._pool.partitions.topics_of(flats).tolist()]

    def _reject(self) -> bool:
        """Go on with those that Kafka will never take."""
        moved = self._rejects.step()
        if (start := self._rejects.take_over()) is not None:
            self._catch_ups.come_by(start)
        return moved

    def _take_cluster(self) -> None:
        if self._strangers.lists:
            self._strangers.step()
        cluster = self._metadata.take()
        if cluster is None:
            return
        partitions, topics = self._pool.partitions, self._live.topics
        waiting = self._unknown.waiting
        self._trouble.note_denied({n: c for n, c in cluster.errors.items() if topics.find(n) in waiting})
        self._pool.set_cluster(cluster)
        self._history.shrink(cluster, partitions, self._clock())
        for topic in self._unknown.denies(cluster, topics):
            self._pool.orphan(topic)
        self._catch_ups.grow(partitions.count)
        for learnt in self._unknown.learn(cluster, topics):
            if learnt.known:
                flats = partitions.of_topic(learnt.topic)
                partitions.hold(flats, np.full(len(flats), learnt.first))
                # A pass may have read beyond the first that waited.
                self._catch_ups.leave_out(flats)
            else:
                self._give_up(learnt)
        # Those of a topic that was created again with fewer; candidates there go where there is a leader.
        gone = np.flatnonzero(~partitions.exist(np.arange(partitions.count, dtype=np.int32)))
        self._catch_ups.sweep(gone)
        self._failures.forget(gone.astype(np.int32))
        self._catch_ups.note_change()
        # Before anything is sent to a broker that is back.
        self._observed_at = 0.0
        if self._history.note(partitions.partitions_of, self._live):
            # After a crash the same messages must be counted by the same numbers.
            self.commit()

    def _give_up(self, learnt: Learnt) -> None:
        """Let a pass come by all that waits for a topic which is not there, or not any more."""
        if learnt.first is not None:
            self._catch_ups.come_by(learnt.first)
        if (first := self._batches.loose.take(learnt.topic)) is not None:
            self._catch_ups.come_by(first)
        flats = self._pool.partitions.ever_of_topic(learnt.topic)
        self._catch_ups.sweep(flats)
        self._failures.forget(flats.astype(np.int32))

    def _observe(self) -> None:
        now = self._clock()
        if now - self._observed_at >= OBSERVE_S:
            self._observed_at = now
            self._catch_ups.note_change()
            self._pool.observe()
            self._notice_outages()
            for start in self._unreadable.look(self._acks.low_watermark):
                self._catch_ups.come_by(start)
            self._strangers.ask()
            if (
                not self._unknown.waiting
                and now - self._asked_at >= ASK_LEADERS_S
                and self._capacity.orphaned()
            ):
                # The timer of the metadata is too slow for messages that wait for a leader.
                self._asked_at = now
                self._metadata.want([])

    def _notice_outages(self) -> None:
        """Messages received while a broker was away are backlog when it comes back."""
        waiting = self._waiting()
        ended = self._outages.ended(self._pool.brokers.rows)
        if ended:
            self._batches.note_outage_end()
            self._limits.kafka_came_back()
        if ended or self._outages.last():
            self._limits.fall_behind(waiting)
        self._limits.follow(waiting)

    def _waiting(self) -> list[int]:
        """The topics, by number, that a pass is to come by for, or that are not known yet."""
        partitions = self._pool.partitions
        held = partitions.topics_where(partitions.is_held()) if partitions.any_held else ()
        return [*{*held, *self._batches.loose, *self._unknown.waiting, *self._catch_ups.sweeping()}]

    # -- writing down ---------------------------------------------------------------------------------

    def commit(self) -> int:
        """Write marks and offsets, and wait until they are durable; the low watermark."""
        self._write_down()
        return self._acks.wait()

    def _write_down(self) -> None:
        """Begin to write marks and offsets."""
        # Reported or refused messages are in flight no more, and no offset covers them before they are
        # settled.
        self.settle()
        lowest, position = lowest_by_broker(self._pool), self.read_position
        offsets = {view.id: view.offset for view in view_brokers(self._pool, position, lowest)}
        # Messages that belong to no broker have an offset under a name of its own.
        waiting = [
            *self._unknown.lowest(),
            *self._rejects.lowest(),
            *self._unreadable.lowest(),
            *self._batches.loose.lowest(),
            *self._catch_ups.lowest(),
        ]
        offsets[UNROUTED] = min(position, *waiting, int(lowest[-1]))
        self._acks.write_down(offsets)
        self._history.forget(self._acks.low_watermark)
        if self._open_counts:
            self._open_counts.report(position, self._acks.low_watermark)

    def brokers(self) -> list[BrokerView]:
        """Every broker: its state, its offset and what is in flight."""
        return view_brokers(self._pool, self.read_position, lowest_by_broker(self._pool))

    def trouble(self) -> str:
        """Why nothing can be sent, or not to some topics, in one sentence; empty when all is well."""
        stopped = self._failures.stopped
        topics = self._names(np.fromiter(stopped, np.int32, len(stopped)))
        self._trouble.note_failing(dict(zip(topics, stopped.values(), strict=True)))
        return self._trouble.sentence() or self._pool.trouble or self._partitioners.sentence()

    @property
    def cause(self) -> Cause:
        """The subject of the last `trouble`."""
        return self._trouble.cause

    def unread(self) -> str:
        """The segments that the disk does not give, in one sentence; empty when it gives everything."""
        return self._unreadable.sentence()

    def in_flight(self) -> int:
        """Messages handed over and not reported."""
        return self._pool.in_flight()

    def give_up(self, sequences: Sequences, reason: int, topics: Sequence[bytes]) -> int:
        """Reject messages that no reader comes by, of these topics; returns how many there was room for."""
        some = sequences[: self._rejects.room]
        now = time.time_ns() // 1_000_000
        self._rejects.add(some, reason, topics[: len(some)], [now] * len(some))
        return len(some)

    def letters_wait_for(self) -> str | None:
        """Why dead letters cannot be sent; None when they can."""
        return self._trouble.complaint("dead letters")

    def drained(self) -> Iterator[int]:
        """Stop reading; yields what is left in flight until nothing is."""
        while left := self.in_flight():
            self.settle()
            yield left

    def close(self) -> None:
        """Wait for what is being written."""
        self._unreadable.close()
        self._rejects.close()
