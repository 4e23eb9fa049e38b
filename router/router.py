"""The loop from the log to the brokers and back.

Two readers go over the log. The *live* one hands over everything once, in order. What cannot go then is
not queued: its partition is held from there on, and the *catch-up* reader comes by again when the broker
has room, sends what is still open, and lets the partition rejoin the live path where the two meet. Bits in
`router.acks` say what is open, so that nothing is sent twice and nothing is passed over (`router.passage`).

Who reads next, and who waits for whom: `router.reading`. A topic that Kafka does not know waits by itself,
for a grace time. When it becomes known its partitions are held, so that its old messages go before its new
ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from dispatch.pool import Outcomes
from router.acks import UNROUTED, Acks
from router.brokers import BrokerView, lowest_without_leader, view_brokers
from router.catch_up import GIVEN_UP, CatchUps
from router.contents import LogContents
from router.discard_names import DiscardNames
from router.ends import Kafka, Log, Rules
from router.failures import Failures
from router.gaps import Gaps
from router.outages import Outages
from router.passage import Passage
from router.reading import Reading
from router.rejects import Rejection, Rejects
from router.renewal import Renewal
from router.strangers import Strangers
from router.tracing import Trace
from router.trouble import Trouble
from router.unknown import Learnt, UnknownTopics
from spool.crash_point import reach

OBSERVE_S = 0.1
ASK_S = 1.0
"""Between two questions for the leaders of partitions that are held because theirs is away."""
NO_REJECTION = Rejection()


class Router:
    """Routes one spool into one cluster. For one thread; `step` never waits."""

    def __init__(
        self,
        log: Log,
        kafka: Kafka,
        acks: Acks,
        rules: Rules,
        *,
        rejection: Rejection = NO_REJECTION,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin at the floor. `rejection`: what becomes of messages that Kafka does not take."""
        self._live, self._again, self._committed, self._eviction, self._shares = log
        self._client, self._pool, self._room, self._metadata = kafka
        self._acks, self._limits = acks, rules.limits
        self._failures = Failures(clock=clock)
        self._unknown = UnknownTopics(grace_s=rejection.grace_s, clock=clock)
        self._trouble = Trouble(self._client, self._metadata)
        self._rejects = Rejects(LogContents(log), kafka, acks, self._trouble, rejection, clock=clock)
        self._rejects.names = DiscardNames(acks.discarded)
        self._rejects.shares = self._shares
        self._gaps = Gaps(log, clock=clock)
        self._strangers = Strangers(
            self._live.topics, self._unknown, self._metadata, lambda: self._catch_ups.swept_all, clock=clock
        )
        self._passage = Passage(log, kafka, rules, self._failures, self._strangers, self._rejects)
        self._growth = self._passage.growth
        self._judge = self._failures.write_off if acks.marks_first else self._failures.judge
        self._catch_ups = CatchUps(
            self._again, self._live, self._pool, self._room, self._failures, self._limits
        )
        self._reading = Reading(log, kafka, self._unknown, self._passage, self._catch_ups, self.commit)
        self._outages = Outages(clock=clock)
        self._renewal = Renewal(self._client, self._pool, clock=clock)
        self._clock, self._observed_at, self._asked_at = clock, 0.0, 0.0
        self._live.seek(acks.floor)

    @property
    def frontier(self) -> int:
        """Everything below was handed over, is covered, or is resolved."""
        return self._live.sequence

    @property
    def handed_over(self) -> int:
        """Messages given to the producer since the start, those sent again included."""
        return self._passage.handed_over

    def follow(self, trace: Trace | None) -> None:
        """Tell this trace what happens to its messages."""
        self._passage.trace = self._acks.trace = trace

    def step(self) -> bool:
        """Do what can be done without waiting; False when there was nothing."""
        self._take_cluster()
        moved = self.settle() > 0
        if self._client.fatal:
            self._trouble.note_finished(self._client.fatal.text)
            lost = self._renewal.attempt(self.in_flight())
            if lost:
                self._note(lost)
                self._catch_ups.fruitless = False
        elif self._evicts():
            moved = True
        else:
            self._observe()
            moved |= self._reject()
            moved |= self._reading.step(self._acks.floor)
        if self._acks.due():
            self._write_down()
        return moved

    def _evicts(self) -> bool:
        """Give up what the spool has no room for; whether nothing else may be done meanwhile."""
        eviction = self._eviction
        if eviction is None:
            return False
        if eviction.recalls() and self._pool.gives_back:
            self._note(self._pool.rebuild())
        busy = eviction.step(self._acks, self._pool, self.frontier)
        for reader in (self._live, self._again):
            if reader.sequence < eviction.done:
                reader.seek(eviction.done)
        return busy

    # -- what became known ----------------------------------------------------------------------------

    def settle(self) -> int:
        """Write down what became known; how many messages that were."""
        return self._note(self._pool.collect())

    def _note(self, outcomes: Outcomes) -> int:
        """The same of outcomes, those of dead letters among them, from wherever they come."""
        count = len(outcomes.sequence)
        if count == 0:
            return 0
        self._catch_ups.fruitless = False
        outcomes = outcomes.only(~self._rejects.settle(outcomes))
        if self._passage.trace:
            self._passage.trace.note_outcomes(outcomes)
        good = outcomes.code == 0
        reach("mark.acknowledged")
        self._acks.resolve(outcomes.sequence[good], outcomes.received_ns[good])
        if self._shares:
            self._shares.note_resolved(self._pool.partitions.rows["topic"][outcomes.flat[good]])
        if good.any():
            self._trouble.note_delivered()
            self._renewal.note_delivered()
            self._failures.note_delivered(outcomes.flat[good])
        if not good.all():
            self._fail(outcomes)
        return count

    def _fail(self, outcomes: Outcomes) -> None:
        """Give back what is to be sent again, discard what Kafka will never take."""
        bad = outcomes.code != 0
        verdict = self._judge(outcomes.sequence[bad], outcomes.code[bad], outcomes.flat[bad])
        for reason, refused in verdict.discard.items():
            self._rejects.add(refused.sequence, reason, self._names(refused.flat), refused.first_ms)
        again = verdict.again
        self._acks.give_back(again.sequence)
        there = self._pool.partitions.exist(again.flat)
        there &= ~np.isin(self._pool.partitions.rows["topic"][again.flat], list(self._unknown.gone))
        self._pool.partitions.hold(again.flat[there], again.sequence[there])
        # Nothing will ever go to those that are gone: a pass finds another place for their messages, or none.
        if not there.all():
            self._catch_ups.given_up.append(int(again.sequence[~there].min()))
        self._catch_ups.leave_out(again.flat)
        if verdict.refresh:
            self._metadata.want([])

    def _names(self, flats: npt.NDArray[np.int32]) -> list[bytes]:
        """The topic of each of these partitions."""
        return [self._live.topics.names[n] for n in self._pool.partitions.rows["topic"][flats].tolist()]

    def _reject(self) -> bool:
        """Go on with those that Kafka will never take."""
        moved = self._rejects.step()
        if (start := self._rejects.take_over()) is not None:
            self._catch_ups.come_by(start)
        return moved

    def _take_cluster(self) -> None:
        self._strangers.step()
        cluster = self._metadata.take()
        if cluster is None:
            return
        partitions, topics = self._pool.partitions, self._live.topics
        waiting = self._unknown.waiting
        self._trouble.denied = {n: c for n, c in cluster.errors.items() if topics.find(n) in waiting}
        self._pool.set_cluster(cluster)
        self._growth.shrink(cluster, partitions, self._clock())
        for topic in self._unknown.denies(cluster, topics):
            self._pool.orphan(topic)
        for learnt in self._unknown.learn(cluster, topics):
            if learnt.known:
                flats = partitions.flats[learnt.topic, : partitions.partitions_of[learnt.topic]]
                partitions.hold(flats, np.full(len(flats), learnt.first))
            else:
                self._give_up(learnt)
        # Those of a topic that was made anew with fewer; who is suspected there goes where there is a leader.
        gone = np.flatnonzero(~partitions.exist(np.arange(partitions.count, dtype=np.int32)))
        self._catch_ups.sweep(gone)
        self._failures.forget(gone.astype(np.int32))
        self._catch_ups.grow(partitions.count)
        self._catch_ups.fruitless = False
        # Before anything is sent to a broker that is back.
        self._observed_at = 0.0
        if self._growth.note(partitions.partitions_of, self._live):
            # After a crash the same messages must be counted by the same numbers.
            self.commit()

    def _give_up(self, learnt: Learnt) -> None:
        """Let a pass come by all that waits for a topic which is not there, or not any more."""
        if learnt.first is not None:
            self._catch_ups.given_up.append(learnt.first)
        if learnt.topic in self._passage.loose:
            self._catch_ups.given_up.append(self._passage.loose.pop(learnt.topic))
        rows = self._pool.partitions.rows[: self._pool.partitions.count]
        self._catch_ups.sweep(np.flatnonzero(rows["topic"] == learnt.topic))

    def _observe(self) -> None:
        now = self._clock()
        if now - self._observed_at >= OBSERVE_S:
            self._observed_at = now
            self._catch_ups.fruitless = False
            self._pool.observe()
            self._notice_outages()
            for start in self._gaps.look(self._acks.floor):
                self._catch_ups.come_by(start)
            self._strangers.ask()
            if not self._unknown.waiting and now - self._asked_at >= ASK_S and self._room.orphaned():
                # The timer of the metadata is too slow for messages that wait for a leader.
                self._asked_at = now
                self._metadata.want([])

    def _notice_outages(self) -> None:
        """What was received while a broker was away is backlog when it comes back."""
        waiting = self._waiting()
        ended = self._outages.ended(self._pool.brokers.rows)
        if ended:
            self._passage.backlog_end = self._committed()
            self._limits.kafka_came_back()
        if ended or self._outages.last():
            self._limits.fall_behind(waiting)
        self._limits.follow(waiting)

    def _waiting(self) -> list[int]:
        """The topics, by number, that a pass is to come by for, or that are not known yet."""
        sweeping = self._catch_ups.current.sweeping if self._catch_ups.current else set[int]()
        held = self._pool.partitions.rows["topic"][self._pool.partitions.held()]
        return [*{*held.tolist(), *self._passage.loose, *self._unknown.waiting, *sweeping} - {GIVEN_UP}]

    # -- writing down ---------------------------------------------------------------------------------

    def commit(self) -> int:
        """Write marks and offsets, and wait until they are; the floor."""
        self._write_down()
        return self._acks.wait()

    def _write_down(self) -> None:
        """Begin to write marks and offsets."""
        # What was reported or refused is in flight no more, and no offset stands for it before it is settled.
        self.settle()
        offsets = {view.id: view.offset for view in self.brokers()}
        # What belongs to no broker keeps its place under a name of its own.
        waiting = [
            *self._unknown.lowest(),
            *self._rejects.lowest(),
            *self._gaps.lowest(),
            *self._passage.loose.values(),
            *self._catch_ups.place,
        ]
        offsets[UNROUTED] = min(self.frontier, *waiting, lowest_without_leader(self._pool))
        self._acks.write_down(offsets)
        self._growth.forget(self._acks.floor)
        if self._shares:
            self._shares.report(self.frontier, self._acks.floor)

    def brokers(self) -> list[BrokerView]:
        """Every broker: its state, its offset and what is in flight."""
        return view_brokers(self._pool, self.frontier)

    def trouble(self) -> str:
        """Why nothing can be sent, or not to some topics, in one sentence; empty when all is well."""
        names, topic = self._live.topics.names, self._pool.partitions.rows["topic"]
        self._trouble.failing = {names[topic[flat]]: code for flat, code in self._failures.stopped.items()}
        return self._trouble.sentence() or self._pool.trouble or self._passage.partitioners.sentence()

    def unread(self) -> str:
        """What the disk does not give, in one sentence; empty when it gives everything."""
        return self._gaps.sentence()

    def in_flight(self) -> int:
        """Messages handed over and not reported."""
        return self._pool.in_flight()

    def drained(self) -> Iterator[int]:
        """Stop reading; yields what is left in flight until nothing is."""
        while left := self.in_flight():
            self.settle()
            yield left

    def close(self) -> None:
        """Wait for what is being written."""
        self._gaps.close()
        self._rejects.close()
