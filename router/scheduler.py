"""Which reader reads next, and the way of each batch from there to the brokers.

The live reader reads as far as there is room, and behind it the one that catches up. `Scheduler` gives them
their turns; `BatchRouter` takes a batch, chooses partitions, and hands over what may go.

A broker that moves slowly slows the reading down, until so much is to be read behind it that the topics which
fill its window are set aside (`router.limits`). One that does not move at all holds back its own partitions
only.

No message is passed over: everything below the live reader's position that is neither resolved nor in flight
is *covered*. Its partition is held from it or from before it; or it may go anywhere and its topic is *loose*
from it or before; or it waits for its topic. `_cover` sees to that after each batch. Messages that the
readers could not read are in an unreadable range (`router.unreadable`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dispatch.pool import HandedOver
from dispatch.retry import Action, decide
from dispatch.tables import NOT_HELD
from router.catch_up import CatchUp, CatchUps, LooseTopics
from router.cluster.brokers import Kafka, Mask
from router.cluster.unknown_topics import Strangers, UnknownTopics
from router.context import Bounds, Log, LogReader, Rules
from router.failures import Failures
from router.limits import hot_topics
from router.outcomes.rejects import Rejects
from router.outcomes.trace import Trace
from router.partition import ABSENT, REFUSED
from router.partition_history import PartitionHistory
from spool.format.batch import Batch
from spool.format.wire import Reason

LOOK_AHEAD_BATCHES = 4
"""Batches of the live path at a time while topics are set aside and there is no room for others."""
CATCH_UP_BATCHES = 2
"""Batches of a catch-up for each one of the live path: it must gain on it."""


class BatchRouter:
    """Takes one batch from a reader to the brokers."""

    def __init__(
        self,
        log: Log,
        kafka: Kafka,
        rules: Rules,
        failures: Failures,
        strangers: Strangers,
        rejects: Rejects,
    ) -> None:
        self._committed, self._open_counts, self._acks = log.committed, log.open_counts, rejects.acks
        self._partitioners, self._limits = rules.partitioners, rules.limits
        self._pool, self._capacity, self._metadata = kafka.pool, kafka.capacity, kafka.metadata
        self._failures, self._strangers, self._rejects = failures, strangers, rejects
        self._unknown = strangers.unknown
        self.history = PartitionHistory(rejects.acks, log.live.topics, log.committed())
        self.loose = LooseTopics()
        """Those that were left, for the catch-up."""
        self._sent = 0
        """When catching up."""
        self._backlog_end = 0, 0
        """Segment number and offset: messages before were received while Kafka was away."""
        self.handed_over = 0
        """Messages given to the producer, those sent again included."""
        self._trace: Trace | None = None

    def follow(self, trace: Trace | None) -> None:
        """Report to this trace what is read, and where it goes."""
        self._trace = trace

    def note_outage_end(self) -> None:
        """Kafka is back: what was committed by now is backlog."""
        self._backlog_end = self._committed()

    def route(self, reader: LogReader, catch_up: CatchUp | None, calm: Mask | None = None) -> bool:
        """Read one batch and hand over what may go; False when nothing is committed, or may be read.

        `calm`: what Capacity.calm says now; None without a question, too.
        """
        if self._strangers.waits:
            return False
        reader.allow(*self._committed())
        old = self._limits.paces and catch_up is None and reader.position < self._backlog_end
        batch = reader.next()
        for damage in reader.take_damage():
            lost = np.arange(damage.first, damage.end, dtype=np.int64)
            self._rejects.discard(lost, Reason.DAMAGED, b"")
        if batch is None:
            return False
        if calm is not None and not old and self._send_plainly(batch, calm):
            return True
        wanted = self._acks.open(batch.sequence)
        batch, wanted = self._with_numbers(reader, batch, wanted)
        if not len(batch):
            return not self._strangers.waits
        wanted = self._admit(batch, wanted, live=catch_up is None)
        if old:
            self._limits.fall_behind(batch.topic[wanted])
        wanted = self._known(batch, wanted)
        if wanted.any():
            self._hand_over(batch, wanted, catch_up, backlog=old or catch_up is not None)
        return True

    def _send_plainly(self, batch: Batch, available: Mask) -> bool:
        """Send the open rows if nothing limits, holds back or follows any; else False, and nothing changes.

        On an ordinary day that is so of every batch. One compiled loop places the rows, another hands them
        over: what costs then is not the work, but the objects that a step touches. `route` has the general
        way.
        """
        if self._trace or self._acks.marks_first or not self.is_plain:
            return False
        bits = self._acks.bits_of(int(batch.sequence[0]), int(batch.sequence[-1]))
        partitions = self._pool.partitions
        chosen = self._partitioners.place(batch, bits, partitions.partitions_of, partitions.flats, available)
        if chosen is None:
            return False
        handed = self._pool.send(batch, chosen)
        self.handed_over += handed.sent
        if handed.held:
            placed = chosen >= 0
            sent, _ = self._note_sent(batch, placed, chosen, chosen, placed, handed, None)
            self._acks.give_back(batch.sequence[placed & ~sent])
        return True

    @property
    def is_plain(self) -> bool:
        """Whether messages go by their topics' partitioners alone, and none waits for a place."""
        waits = self.loose or self._unknown.deleted or self._strangers.waits
        return not (waits or self._open_counts or self._limits.any) and self.history.is_empty

    @property
    def must_see_all(self) -> bool:
        """Whether the live path passes over no message: it counts for quotas, or discards the excess."""
        return self._open_counts is not None or self._limits.discards

    def _admit(self, batch: Batch, wanted: Mask, *, live: bool) -> Mask:
        """The rows that are to be delivered; on the live path those in excess are discarded."""
        if self._trace:
            self._trace.note_read(batch, wanted)
        if live:
            if self._open_counts:
                # With those in excess, which count as resolved at once.
                self._open_counts.note_read(batch, wanted)
            wanted &= ~self._discard_excess(batch, wanted)
        return wanted

    @property
    def moved(self) -> int:
        """Messages given up, and sent when catching up."""
        return self._sent + self._rejects.moved

    def _with_numbers(self, reader: LogReader, batch: Batch, wanted: Mask) -> tuple[Batch, Mask]:
        """As much of the batch as has topics with numbers, or may be discarded; and its wanted rows."""
        without = np.flatnonzero(wanted & (batch.topic == batch.topics.others))
        first = int(without[0]) if len(without) else 0
        if len(without) and self._strangers.may_have_room(batch.topic[:first]):
            reader.seek(int(batch.sequence[first]))
            return batch.before(first), wanted[:first]
        return batch, wanted

    def _known(self, batch: Batch, wanted: Mask) -> Mask:
        """The wanted rows whose topic has partitions; those of other topics wait, or are given up."""
        missing = wanted & (self._pool.partitions.counts_of(batch.topic) == 0)
        if self._unknown.deleted:
            missing |= wanted & np.isin(batch.topic, list(self._unknown.deleted))
        if not missing.any():
            return wanted
        topics, gone = batch.topics, [batch.topics.illegal, *self._unknown.gone]
        beyond = missing & (batch.topic == topics.others)
        hopeless = missing & np.isin(batch.topic, gone)
        for rows, reason in ((hopeless, Reason.UNKNOWN_TOPIC), (beyond, Reason.TOO_MANY_TOPICS)):
            if rows.any():
                self._rejects.add_rows(batch, np.flatnonzero(rows), reason, self._unknown.denied_ms)
        waiting = np.flatnonzero(missing & ~beyond & ~hopeless)
        numbers, first = np.unique(batch.topic[waiting], return_index=True)
        sequences = batch.sequence[waiting[first]]
        new = [
            n for n, s in zip(numbers.tolist(), sequences.tolist(), strict=True) if self._unknown.wait(n, s)
        ]
        if new:
            self._metadata.want([topics.names[topic] for topic in new])
        return wanted & ~missing

    def _discard_excess(self, batch: Batch, wanted: Mask) -> Mask:
        """Discard what came in faster than its topic may; which rows those are."""
        beyond = self._limits.beyond(batch)
        self._rejects.drop_rows(batch, np.flatnonzero(beyond & wanted), Reason.RATE_LIMITED)
        return beyond

    def _hand_over(self, batch: Batch, wanted: Mask, catch_up: CatchUp | None, *, backlog: bool) -> None:
        partitions = self._pool.partitions
        chosen = self._choose(batch, wanted, catch_up)
        wanted = wanted & ~self._give_up(batch, chosen)
        flat, closed = self._select(batch, chosen, catch_up, backlog=backlog)
        before = partitions.held_from_of(flat)
        may = self._may_go(batch, flat, before, catching_up=catch_up is not None)
        handed = self._pool.send(batch, flat, catching_up=catch_up is not None)
        self.handed_over += handed.sent
        sent, left = self._note_sent(batch, wanted, chosen, flat, may, handed, catch_up)
        self._limits.charge(batch, sent, backlog=backlog)
        if self._acks.marks_first:
            self._acks.unmark(batch.sequence[may & ~sent])
        if self._trace:
            self._trace.note_placed(batch, chosen, sent, wanted)
        if catch_up:
            self._sent += int(sent.sum())
            catch_up.leave_out(chosen[left & (chosen >= 0)])
            catch_up.leave_out(closed)

    def _note_sent(  # noqa: PLR0913, PLR0917  (columns of one batch)
        self,
        batch: Batch,
        wanted: Mask,
        chosen: npt.NDArray[np.int32],
        flat: npt.NDArray[np.int32],
        may: Mask,
        handed: HandedOver,
        catch_up: CatchUp | None,
    ) -> tuple[Mask, Mask]:
        """Note which rows went, and cover the wanted ones that did not; (sent, left)."""
        after = self._pool.partitions.held_from_of(flat)
        sent = may & ((after == NOT_HELD) | (batch.sequence < after))
        self._acks.take(batch.sequence[sent])
        left = wanted & ~sent
        if left.any():
            loose = self._cover(batch, left, chosen)
            if catch_up:
                catch_up.stop_sweeping(loose)
        if handed.error:
            self.decline(np.unique(flat[left & (flat >= 0)]), handed.error)
        return sent, left

    def decline(self, flats: npt.NDArray[np.int32], error: int) -> None:
        """Librdkafka itself did not take a message of these partitions."""
        self._failures.decline(flats)
        if decide(error).action is Action.REFRESH:
            self._metadata.want([])

    def _give_up(self, batch: Batch, chosen: npt.NDArray[np.int32]) -> Mask:
        """Give up the rows that have no partition, or let them wait; which they are.

        Their topic's function gives none, or it has none of the message's number.
        """
        refused, absent = chosen == REFUSED, chosen == ABSENT
        nowhere = np.asarray(refused | absent)
        if not nowhere.any():
            return nowhere
        certain = absent & self._unknown.is_certain(batch, absent)
        for rows, reason in ((refused, Reason.PARTITIONER), (certain, Reason.PARTITION)):
            if rows.any():
                self._rejects.add_rows(batch, np.flatnonzero(rows), reason, self._unknown.denied_ms)
        if grown := self._unknown.doubt(batch, absent & ~certain):
            self._metadata.want([batch.topics.names[topic] for topic in grown])
        chosen[nowhere] = -1
        return nowhere

    def _select(
        self, batch: Batch, chosen: npt.NDArray[np.int32], catch_up: CatchUp | None, *, backlog: bool
    ) -> tuple[npt.NDArray[np.int32], list[int]]:
        """`chosen` with -1 for rows that may not go yet; and the partitions that are to wait for outcomes."""
        flat = chosen.copy()
        # The live path sends to no partition that is held; a pass to those that take part.
        open_to = ~self._pool.partitions.is_held()
        if catch_up:
            open_to |= catch_up.ready
        flat[(flat >= 0) & ~open_to[flat]] = -1
        self._limits.thin(batch, flat, len(open_to), backlog=backlog)
        return flat, self._failures.group(batch.sequence, flat) if catch_up else []

    def _may_go(
        self,
        batch: Batch,
        flat: npt.NDArray[np.int32],
        before: npt.NDArray[np.int64],
        *,
        catching_up: bool,
    ) -> Mask:
        """Which rows the pool would take, as far as their partitions are concerned.

        A held partition gets nothing on the live path, and nothing from before its place when catching up.
        With marks first, these are marked, and the others taken out of `flat`.
        """
        may = (flat >= 0) & ((before == NOT_HELD) | (catching_up & (batch.sequence >= before)))
        if self._acks.marks_first:
            may &= self._capacity.led()[flat]
            may &= self._acks.mark_ahead(batch.sequence[may])
            flat[~may] = -1
        return np.asarray(may)

    def _choose(self, batch: Batch, wanted: Mask, catch_up: CatchUp | None) -> npt.NDArray[np.int32]:
        """The flat partition of each wanted row; -1 for others, and where there is none to go to."""
        partitions = self._pool.partitions
        available = self._capacity.available(catch_up.ready if catch_up else None)
        chosen = np.full(len(batch), -1, np.int32)
        numbered = wanted & batch.numbered
        if numbered.any():
            # Today's counts hold for them.
            today = partitions.partitions_of, partitions.flats
            np.copyto(chosen, self._partitioners.assign(batch, numbered, *today, available), where=numbered)
        others = wanted & ~numbered
        for rows, counts in self.history.parts(batch.sequence, others, partitions.partitions_of):
            flat = self._partitioners.assign(batch, rows, counts, partitions.flats, available)
            np.copyto(chosen, flat, where=rows)
        if catch_up:
            self._failures.single_out(batch.sequence, wanted, chosen)
        return chosen

    def _cover(self, batch: Batch, left: Mask, chosen: npt.NDArray[np.int32]) -> set[int]:
        """See to it that each row that was left will be come by again; the topics that are loose by it."""
        partitions = self._pool.partitions
        placed = np.flatnonzero(left & (chosen >= 0))
        held_from = partitions.held_from_of(chosen[placed])
        bare = placed[(held_from == NOT_HELD) | (held_from > batch.sequence[placed])]
        partitions.hold(chosen[bare], batch.sequence[bare])
        loose = left & self._partitioners.free(batch) & ~np.isin(chosen, self._failures.with_candidates())
        # Of a topic with one partition the place is certain.
        loose[loose] = partitions.counts_of(batch.topic[loose]) > 1
        topics = np.unique(batch.topic[loose]).tolist()
        for topic in topics:
            first = int(batch.sequence[np.argmax(loose & (batch.topic == topic))])
            self.loose.note(topic, first)
        return set(topics)


class Scheduler:
    """Decides which reader reads next, a batch at a time."""

    def __init__(  # noqa: PLR0913, PLR0917  (each is another part of the router)
        self,
        log: Log,
        kafka: Kafka,
        unknown: UnknownTopics,
        batches: BatchRouter,
        passes: CatchUps,
        commit: Callable[[], int],
        bounds: Bounds,
    ) -> None:
        """`commit` writes the marks, and waits for them: it is called where counts must be in them first."""
        self._live, self._catch_up_reader, self._committed = log.live, log.catch_up, log.committed
        self._pool, self._capacity = kafka.pool, kafka.capacity
        self._unknown, self._commit, self._behind_bytes = unknown, commit, bounds.behind_bytes
        self._batches, self._passes = batches, passes
        self._aside: set[int] = set()
        """Topics, by number."""
        self.has_room = True
        """Whether the last step would have taken more of the live path."""

    def step(self, low_watermark: int) -> bool:
        """Batches of the live path, then of the catch-up, as far as there is room.

        `low_watermark`: of the marks. False when more can be done only after a change elsewhere.
        """
        committed = self._committed()
        self.has_room = True
        more = self._behind(committed) > 0 and self._go_on(committed)
        return self._step_catch_up(low_watermark) or more

    def _go_on(self, committed: tuple[int, int]) -> bool:
        """Batches of the live path; whether more may be read at once."""
        calm = self._capacity.calm()
        may_read = calm is not None or self._may_read(None)
        waits = not may_read and not self._pool.closed
        if waits and self._behind(committed) > self._behind_bytes:
            self._set_aside()
        looks_ahead = waits and bool(self._aside) and self._moving()
        self.has_room = may_read or looks_ahead
        for _ in range(LOOK_AHEAD_BATCHES if looks_ahead else 1):
            if not (may_read or looks_ahead) or not self._read_on(calm):
                return False
        return self._behind(committed) > 0

    def _may_read(self, catch_up: CatchUp | None) -> bool:
        """Whether there is a place for what is read; before the first metadata, for nothing.

        Partitions that are caught up get nothing on the live path, and so do not slow it down.
        """
        if not self._pool.brokers.count:
            return not self._unknown.waiting
        partitions = self._capacity.free()
        if catch_up:
            partitions = catch_up.ready | (partitions & self._passes.swept(catch_up))
        return self._capacity.may_read(partitions)

    def _read_on(self, calm: Mask | None) -> bool:
        """One batch of the live path, or a segment that it passes over; False when nothing is committed."""
        if self._batches.history.reach(self._live):
            self._commit()
            # It takes reports, too.
            calm = None
        if self._aside:
            self._aside = {topic for topic in self._aside if self._passes.waits(topic)}
        if self._aside and not self._batches.must_see_all:
            names = {self._live.topics.names[topic] for topic in self._aside}
            # One at a time: there may be thousands.
            if self._live.pass_over(names):
                return True
        return self._batches.route(self._live, None, calm)

    def _behind(self, committed: tuple[int, int]) -> int:
        """Bytes from the live path to what was committed last; of other segments, a number above any."""
        number, position = self._live.position
        last, end = committed
        return end - position if number == last else max(0, last - number) << 40

    def _moving(self) -> bool:
        """Whether Kafka takes anything at all."""
        return bool(self._pool.brokers.healthy().any())

    def _set_aside(self) -> None:
        """Hold the topics that fill the brokers without room, so that the reading need not wait for them."""
        partitions, place = self._pool.partitions, self._live.sequence
        for topic in hot_topics(self._pool, self._capacity.roomy(), self._capacity.free()).tolist():
            flats = partitions.of_topic(topic)
            partitions.hold(flats, np.full(len(flats), place))
            self._batches.loose.note(topic, place)
            self._aside.add(topic)
            self._passes.note_change()

    def _step_catch_up(self, low_watermark: int) -> bool:
        """A few batches of the catch-up that is under way, or the start of one; False when none is due."""
        passes, batches = self._passes, self._batches
        catch_up = passes.current or passes.begin(low_watermark, batches.moved)
        if catch_up is None:
            return False
        moved = False
        for _ in range(CATCH_UP_BATCHES):
            if passes.is_over(catch_up):
                break
            if passes.turn_is_over(catch_up):
                passes.break_off(catch_up)
                return True
            passes.join(catch_up)
            if not (self._may_read(catch_up) and batches.route(self._catch_up_reader, catch_up)):
                break
            moved = True
            catch_up.note_batch()
            passes.rest(catch_up)
        if passes.is_over(catch_up):
            passes.finish(catch_up, batches.moved)
            return True
        return moved
