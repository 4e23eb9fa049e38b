"""The passage of one batch: read from the log, given partitions, handed over, and what stays behind covered.

Both readers come through here, the live one and the one that catches up. What keeps a message from being
passed over: everything below the live reader's place that is neither resolved nor in flight is *covered*.
Its partition is held from it or from before it; or it may go anywhere and its topic is *loose* from it or
before; or it waits for its topic. `_cover` sees to that after each batch. What the readers could
not read lies in a gap (`router.gaps`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dispatch.partitions import NOT_HELD
from dispatch.retry import Action, decide
from router.acks import Acks
from router.catch_up import CatchUp
from router.ends import Kafka, Log, Rules
from router.failures import Failures
from router.growth import Growth
from router.partition import REFUSED
from router.rejects import Rejects
from router.room import Mask
from router.strangers import Strangers
from router.tracing import Trace
from spool.reader import Reader
from spool.record import Batch
from spool.wire import Reason


class Passage:
    """From a reader to the brokers, a batch at a time."""

    def __init__(
        self,
        log: Log,
        kafka: Kafka,
        rules: Rules,
        failures: Failures,
        strangers: Strangers,
        rejects: Rejects[Acks],
    ) -> None:
        self._committed, self._acks = log.committed, rejects.acks
        self.partitioners, self._limits = rules
        _, self._pool, self._room, self._metadata = kafka
        self._failures, self._strangers, self._rejects = failures, strangers, rejects
        self._unknown = strangers.unknown
        self.growth = Growth(rejects.acks, log.live.topics, log.committed())
        self.loose: dict[int, int] = {}
        """Topic -> lowest sequence of a message that may go anywhere and found no place."""
        self._sent = 0
        """When catching up."""
        self.backlog_end = 0, 0
        """Segment number and offset: what lies before was received while Kafka was away."""
        self.handed_over = 0
        """Messages given to the producer, those sent again included."""
        self.trace: Trace | None = None
        """Follows some of them."""

    def route(self, reader: Reader, catch_up: CatchUp | None) -> bool:
        """Read one batch and hand over what may go; False when nothing is committed, or may be read."""
        if self._strangers.waits:
            return False
        reader.allow(*self._committed())
        old = catch_up is None and reader.position < self.backlog_end
        batch = reader.next()
        for damage in reader.damage:
            lost = np.arange(damage.first, damage.end, dtype=np.int64)
            self._rejects.discard(lost, Reason.DAMAGED, b"")
        reader.damage.clear()
        if batch is None:
            return False
        batch, wanted = self._with_numbers(reader, batch)
        if not len(batch):
            return not self._strangers.waits
        wanted = self._admit(batch, wanted, live=catch_up is None)
        if old:
            self._limits.fall_behind(batch.topic[wanted])
        wanted = self._known(batch, wanted)
        if wanted.any():
            self._hand_over(batch, wanted, catch_up, backlog=old or catch_up is not None)
        return True

    def _admit(self, batch: Batch, wanted: Mask, *, live: bool) -> Mask:
        """The rows that are to be delivered; on the live path those in excess are discarded."""
        if self.trace:
            self.trace.note_read(batch, wanted)
        if live:
            wanted &= ~self._discard_excess(batch, wanted)
            if self._rejects.shares:
                self._rejects.shares.note_read(batch, wanted)
        return wanted

    @property
    def moved(self) -> int:
        """Messages given up, and sent when catching up."""
        return self._sent + self._rejects.moved

    def _with_numbers(self, reader: Reader, batch: Batch) -> tuple[Batch, Mask]:
        """As much of the batch as has topics with numbers, or may be discarded; and which rows are open."""
        wanted = self._acks.open(batch.sequence)
        without = np.flatnonzero(wanted & (batch.topic == batch.topics.others))
        if len(without) and self._strangers.may_have_room():
            first = int(without[0])
            reader.seek(int(batch.sequence[first]))
            return batch.before(first), wanted[:first]
        return batch, wanted

    def placeable(self, ready: Mask) -> list[int]:
        """The loose topics that have a partition to go to, `ready` ones included."""
        if not self.loose:
            return []
        rows = self._pool.partitions.rows[: len(ready)]
        topics = set(rows["topic"][self._room.available(ready)].tolist())
        may_go = self._limits.worthwhile()
        return [topic for topic in self.loose if topic in topics and may_go[topic]]

    def _known(self, batch: Batch, wanted: Mask) -> Mask:
        """The wanted rows whose topic has partitions; those of other topics wait, or are given up."""
        known = self._pool.partitions.partitions_of
        missing = wanted & (np.pad(known, (0, len(batch.topics.names)))[batch.topic] == 0)
        if self._unknown.gone:
            missing |= wanted & np.isin(batch.topic, list(self._unknown.gone))
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
        rows = self._pool.partitions.rows
        chosen = self._choose(batch, wanted, catch_up)
        wanted = wanted & ~self._give_up(batch, chosen)
        flat, closed = self._select(batch, chosen, catch_up, backlog=backlog)
        before = rows["held_from"][flat]
        may = self._may_go(batch, flat, before, catching_up=catch_up is not None)
        handed = self._pool.send(batch, flat, catching_up=catch_up is not None)
        self.handed_over += handed.sent
        after = rows["held_from"][flat]
        sent = may & ((after == NOT_HELD) | (batch.sequence < after))
        self._limits.charge(batch, sent, backlog=backlog)
        self._acks.take(batch.sequence[sent])
        if self._acks.marks_first:
            self._acks.unmark(batch.sequence[may & ~sent])
        if self.trace:
            self.trace.note_placed(batch, chosen, sent, wanted)
        left = wanted & ~sent
        if left.any():
            loose = self._cover(batch, left, chosen)
            if catch_up:
                # The next pass for them begins there.
                catch_up.sweeping -= loose
        if handed.error:
            # Librdkafka itself did not take a message.
            self._failures.decline(np.unique(flat[left & (flat >= 0)]))
            if decide(handed.error).action is Action.REFRESH:
                self._metadata.want([])
        if catch_up:
            self._sent += int(sent.sum())
            catch_up.ready[chosen[left & (chosen >= 0)]] = False
            catch_up.ready[closed] = False

    def _give_up(self, batch: Batch, chosen: npt.NDArray[np.int32]) -> Mask:
        """Give up the rows for which their topic's function gives no partition; which they are."""
        refused = chosen == REFUSED
        if refused.any():
            chosen[refused] = -1
            self._rejects.add_rows(
                batch, np.flatnonzero(refused), Reason.PARTITIONER, self._unknown.denied_ms
            )
        return np.asarray(refused)

    def _select(
        self, batch: Batch, chosen: npt.NDArray[np.int32], catch_up: CatchUp | None, *, backlog: bool
    ) -> tuple[npt.NDArray[np.int32], list[int]]:
        """`chosen` with -1 for rows that may not go yet; and the partitions that are to wait for outcomes."""
        flat = chosen.copy()
        # The live path sends to no partition that is held; a pass to those that take part.
        open_to = self._pool.partitions.rows["held_from"][: self._pool.partitions.count] == NOT_HELD
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
        Where marks come first, these are marked, and the others taken out of `flat`.
        """
        may = (flat >= 0) & ((before == NOT_HELD) | (catching_up & (batch.sequence >= before)))
        if self._acks.marks_first:
            may &= self._room.led()[flat]
            may &= self._acks.mark_ahead(batch.sequence[may])
            flat[~may] = -1
        return np.asarray(may)

    def _choose(self, batch: Batch, wanted: Mask, catch_up: CatchUp | None) -> npt.NDArray[np.int32]:
        """The flat partition of each wanted row; -1 for others, and where there is none to go to."""
        partitions = self._pool.partitions
        available = self._room.available(catch_up.ready if catch_up else None)
        chosen = np.full(len(batch), -1, np.int32)
        for rows, counts in self.growth.parts(batch.sequence, wanted, partitions.partitions_of):
            flat = self.partitioners.assign(batch, rows, counts, partitions.flats, available)
            np.copyto(chosen, flat, where=rows)
        if catch_up:
            self._failures.single_out(batch.sequence, wanted, chosen)
        return chosen

    def _cover(self, batch: Batch, left: Mask, chosen: npt.NDArray[np.int32]) -> set[int]:
        """See to it that each row that was left will be come by again; the topics that are loose by it."""
        partitions = self._pool.partitions
        placed = np.flatnonzero(left & (chosen >= 0))
        held_from = partitions.rows["held_from"][chosen[placed]]
        bare = placed[(held_from == NOT_HELD) | (held_from > batch.sequence[placed])]
        partitions.hold(chosen[bare], batch.sequence[bare])
        loose = left & self.partitioners.free(batch) & ~np.isin(chosen, self._failures.suspected())
        topics = np.unique(batch.topic[loose]).tolist()
        for topic in topics:
            first = int(batch.sequence[np.argmax(loose & (batch.topic == topic))])
            self.loose[topic] = min(first, self.loose.get(topic, first))
        return set(topics)
