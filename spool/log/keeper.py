"""The keeper: a process of its own for everything that may wait for the disk.

It makes spare segments ahead of need, commits what was written, seals full segments, and retires delivered
ones. A word in the shared state says whether the spool is full. Only the keeper changes the files of the log;
the appender stores bytes, the deliverer reads.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from spool.errors import ReadFailed, SpoolFull
from spool.format.frame import BURST, DISCARDED, POSITION, SEQUENCE, STORED
from spool.format.scan import Chunk
from spool.format.segment import Identity
from spool.index.index import Index
from spool.index.segment_list import RETRY_S
from spool.layout import SPARE, Layout
from spool.log.committer import Committer
from spool.log.group_commit import GroupCommit
from spool.log.intake_totals import SenderTable
from spool.log.quotas import LOOK_S, Quotas
from spool.log.refusal_log import RefusalLog
from spool.log.retention import Ages, Packer, Stock, expired, undelivered, waiting_bytes
from spool.options import ALWAYS, LEAST, Full, SpoolOptions, WhenFull, fullness, give_up, most_spares, want
from spool.shared.ledger import LedgerCopy, read_ledger
from spool.shared.state import Field, History, SharedState, no_beat, split_place
from spool.storage.ab_slots import make_slots
from spool.storage.disk import free_bytes, is_regular
from spool.storage.failpoint import reach

log = logging.getLogger("bruce.keeper")

AHEAD_S = 6.0
"""Spares last at least this long at the present rate: a disk that stalls must not stop intake."""
RATE_S = 0.5
EVICTION_S = 30.0
"""The time the delivery worker has to discard the oldest messages; then the newest are discarded."""
_PATIENCE = 20
"""While there is no room and nothing changes, the search for room may take a twentieth of the time."""

_THEN = {
    WhenFull.DISCARD_NEWEST: "new messages are discarded until there is room",
    WhenFull.BLOCK: "senders wait until there is room",
    WhenFull.DISCARD_OLDEST: "new messages are discarded: there is nothing older to give up",
}


class Provision:
    """The keeper's provision of segments."""

    def __init__(self, stock: Stock, shared: SharedState, number: int) -> None:
        """Offer the spares that exist behind segment `number`."""
        self._stock, self._shared = stock, shared
        options = stock.options
        self._when_full = WhenFull[options.when_full.upper()]
        self._most = most_spares(options.max_bytes, options.segment_bytes)
        self._least = min(LEAST, self._most)
        self.next_spare = number + 1
        while is_regular(stock.layout.segment(self.next_spare, SPARE)):
            self.next_spare += 1
        self.rate = 0.0
        """Bytes a second."""
        self._counted: int | None = None
        self._seen = (0, 0, 0)
        self._counted_at = self._again_at = self._asked_at = 0.0
        shared.words[Field.WHEN_FULL] = self._when_full
        shared.words[Field.EVICT] = 0
        self._offer(number)

    def restock(self, written: int, log_bytes: int) -> None:
        """Make spares for AHEAD_S at the present rate; when there is no room, tell the appender.

        `written`: the number of the segment in use. `log_bytes`: all bytes ever written, near enough for a
        rate.
        """
        ahead = self._ahead(log_bytes)
        if time.monotonic() < self._again_at and self._situation(written) == self._seen:
            return
        while self.next_spare <= written + ahead:
            started = time.monotonic()
            try:
                self._stock.make_spare(self.next_spare)
            except SpoolFull as error:
                self._lack(error, self.next_spare - 1 - written)
                self._again_at = started + _PATIENCE * (time.monotonic() - started)
                self._seen = self._situation(written)
                return
            reach("roll.made")
            self.next_spare += 1
            self._offer(written)

    def _situation(self, written: int) -> tuple[int, int, int]:
        """The low watermark, the free bytes, the segment in use: without a change the search is vain.

        Each segment that is taken into use leaves a spare less, and with too few of them the spool is full.
        """
        free, _ = free_bytes(self._stock.layout.segments)
        return int(self._shared.words[Field.LOW_WATERMARK]), free, written

    def _ahead(self, log_bytes: int) -> int:
        """How many segments to have beyond the one in use."""
        now = time.monotonic()
        if self._counted is None:
            self._counted, self._counted_at = log_bytes, now
        elif now - self._counted_at >= RATE_S:
            self.rate = (log_bytes - self._counted) / (now - self._counted_at)
            self._counted, self._counted_at = log_bytes, now
        ahead = 1 + max(1, math.ceil(self.rate * AHEAD_S / self._stock.options.segment_bytes))
        return min(ahead, self._most)

    def _offer(self, written: int) -> None:
        """Let the appender have the spares; after the spool was full, only when there are enough of them."""
        words, spares = self._shared.words, self.next_spare - 1 - written
        before = Full(int(words[Field.FULL]))
        if before and fullness(before, spares, self._least, Full.ROOM):
            return
        words[Field.SPARE] = self.next_spare - 1
        if before:
            log.warning("there is room again; new messages are accepted")
        words[Field.FULL] = Full.ROOM

    def _lack(self, error: SpoolFull, spares: int) -> None:
        """Without room for one more spare: have messages discarded, or say that the spool is full."""
        words = self._shared.words
        short = spares < self._least
        if self._when_full is WhenFull.DISCARD_OLDEST and short and self._evict():
            return
        before = Full(int(words[Field.FULL]))
        found = fullness(before, spares, self._least, error.why)
        if found and not before:
            words[Field.FULL_SINCE_NS] = time.time_ns()
            log.error("%s; %s", error, _THEN[self._when_full])
        words[Field.FULL] = found

    def _evict(self) -> bool:
        """Have the oldest messages discarded; False when there are none, or no process does it in time."""
        words, now, options = self._shared.words, time.monotonic(), self._stock.options
        low_watermark = int(words[Field.LOW_WATERMARK])
        if low_watermark >= words[Field.EVICT]:
            asked = want(options.max_bytes, options.segment_bytes)
            limit = give_up(undelivered(self._stock.layout, low_watermark), asked)
            if limit is None or limit <= low_watermark:
                return False
            log.warning("no room: undelivered messages below %d are discarded", limit)
            words[Field.EVICT], self._asked_at = limit, now
        return now - self._asked_at < EVICTION_S


REST_S, IDLE_S = 2.0, 0.2
"""Longest sleep without a bell: with nothing to look after, and with something."""
COPY_S = 1.0
"""Between two copies of the ledger, and of the totals by uid; while nothing is written, REST_S."""
STANDS_S = 0.02
"""Between two attempts to commit while the synced watermark is stuck at damage or a suspect segment."""
UNREAD_S = 1.0
"""Between two attempts to read back what the disk gives an error for: each may take it seconds."""
EXPIRE_S = 1.0
"""Between two looks for delivered segments that may go."""
UPKEEP_S = 0.25
"""Between two looks for whatever else there is to do, while commits follow one another in one segment."""
_WRITTEN, _SYNCED = int(Field.WRITTEN), int(Field.SYNCED)
"""Looked up for each commit: a member of an enumeration is a slower index."""


class Pauses(NamedTuple):
    """Seconds between two attempts of a keeper at the same thing."""

    quotas: float = LOOK_S
    """To look which topics are over their quota."""
    unread: float = UNREAD_S
    """To read back what is not committed."""
    seal: float = RETRY_S
    """To seal a segment that the disk gave an error for."""


PAUSES = Pauses()


class Keeper:
    """The keeper of one spool."""

    def __init__(  # noqa: PLR0913  (each is another part's)
        self,
        layout: Layout,
        identity: Identity,
        options: SpoolOptions,
        shared: SharedState,
        *,
        bell: int,
        told: Sequence[int] = (),
        pauses: Pauses = PAUSES,
    ) -> None:
        """`bell`: the eventfd that the appender rings. `told`: those that ring when the watermark moves."""
        self.stopping = False
        self.beat: Callable[[], None] = no_beat
        self._layout, self._options, self._shared = layout, options, shared
        self._told, self._unread_s = told, pauses.unread
        self._group = GroupCommit(
            shared,
            bell,
            told,
            interval_s=0.0 if options.sync == ALWAYS else options.sync_interval_ms / 1000,
            most_bytes=options.sync_bytes,
        )
        self._index = Index(layout.index, identity.spool, identity.boot)
        with suppress(SpoolFull):
            # While there is room for it.
            make_slots(layout.refused)
        self._stock = Stock(layout, identity, options)
        self._stock.leaving = self._save_senders
        self._quotas = Quotas(layout, shared, options.quotas, options.max_bytes, look_s=pauses.quotas)
        self._committer = Committer(layout, self._index, shared, retry_s=pauses.seal)
        self._senders = SenderTable(layout)
        self._committer.seen = self._see
        if self._committer.commit_all():
            self._senders.begin(self._committed())
        reach("recover.walked")
        # Behind the last segment in use, even if it cannot be committed whole.
        self._provision = Provision(self._stock, shared, max(self._committer.number, self._committer.last))
        self._ages = Ages(layout.ages)
        self._history = History(shared.words)
        self._refusals = RefusalLog()
        shared.words[Field.MAX_BYTES] = options.max_bytes
        shared.words[Field.MIN_FREE_BYTES] = -1 if options.min_free_bytes is None else options.min_free_bytes
        self._expired_at = -math.inf
        self._retired = (0, 0)
        self._kept_number, self._kept_at = -1, -math.inf
        """Segment and time of the last upkeep."""
        self._stands = self._unread = False
        self._again_at = -math.inf
        self._packer = Packer(layout) if options.recompress else None
        self._ledger: LedgerCopy | None = None
        self._copied_at, self._copy_fails = -math.inf, False
        self._announce()

    def run(self) -> None:
        """Work until `stopping` is set; then commit the rest, and seal."""
        left = due = True
        while not self.stopping:
            if due:
                self.beat()
            self.step(left=left, upkeep=due)
            left, due = self._wait(), self._is_upkeep_due()
        # The supervisor has stopped the appender before.
        self._committer.ended = True
        self.commit()
        # Once more, in case a sync has failed: from a fresh file.
        self.commit()
        self._committer.seal_last()
        if self._packer:
            self._packer.close()
        if self._options.keep_delivered_hours is not None:
            self._ages.save()
        self._copied_at = -math.inf
        self._copy_totals()
        self._senders.close()
        if self._ledger:
            self._ledger.close()
            self._ledger = None
        self._index.close()
        # Last: whatever fails in it, all else is done.
        self._note_history(ends=True)

    def step(self, *, left: bool = True, upkeep: bool = True) -> None:
        """Do everything that is due now. An OSError shows in the shared state until a commit succeeds.

        `left`: whether something may have been written that is to be committed now.
        """
        try:
            if left:
                self.commit()
            if upkeep or self._committer.number != self._kept_number:
                self._keep_up()
        except OSError as error:
            self._shared.words[Field.SYNC_ERROR] = error.errno or -1
            raise

    def _is_upkeep_due(self) -> bool:
        return self._has_work() or time.monotonic() - self._kept_at >= UPKEEP_S

    def _keep_up(self) -> None:
        """Do all but to commit."""
        self._kept_number, self._kept_at = self._committer.number, time.monotonic()
        self._retire()
        self._expire()
        self._restock()
        self._quotas.look()
        self._committer.seal_one()
        if self._packer:
            self._packer.step()
        self._copy_totals()
        if self._history.due():
            self._note_history()

    def commit(self) -> None:
        """Commit what the appender announced."""
        words = self._shared.words
        written, before = int(words[_WRITTEN]), int(words[_SYNCED])
        self._stands = False
        self._group.begin()
        if written == before:
            return
        if time.monotonic() < self._again_at and not self.stopping:
            self._stands = True
            return
        try:
            self._committer.commit(*split_place(written))
            self._unread = False
        except ReadFailed as error:
            self._note_unread(error)
        reach("sync.published")
        self._stands = before == int(words[_SYNCED])
        self._announce()

    def _announce(self) -> None:
        """Wake the workers that read what is committed."""
        for bell in self._told:
            os.eventfd_write(bell, 1)

    def _note_unread(self, error: ReadFailed) -> None:
        """The segment in use cannot be read back: nothing behind that position is synced, or delivered."""
        self._shared.words[Field.SYNC_ERROR] = error.errno or -1
        self._again_at = time.monotonic() + self._unread_s
        if not self._unread:
            log.error("%s; what is not committed waits for it, and is tried again every second", error)
        self._unread = True

    def _see(self, first: int, chunk: Chunk) -> None:
        """Count frames that are committed, or about to be."""
        # A backlog takes seconds while the loops are interpreted, and the keeper does not hang meanwhile.
        self.beat()
        self._quotas.add(first, chunk)
        self._senders.add(chunk)

    def _committed(self) -> int:
        """The last committed burst."""
        return int(self._committer.tail[BURST])

    def _save_senders(self) -> None:
        self._senders.save(self._committed())

    def _copy_totals(self) -> None:
        """Sync the totals kept beside the log, so that power loss takes at most COPY_S of them."""
        if time.monotonic() - self._copied_at < COPY_S:
            return
        self._copied_at = time.monotonic()
        self._save_senders()
        self._copy_ledger()

    def _copy_ledger(self) -> None:
        try:
            self._ledger = self._ledger or LedgerCopy(self._layout.ledger)
            self._ledger.update()
            self._copy_fails = False
        except (OSError, SpoolFull) as error:
            if not self._copy_fails:
                log.warning(
                    "power loss may take what the ledger counts, which could not be synced: %s", error
                )
            self._copy_fails = True

    def _wait(self) -> bool:
        """Wait, and commit meanwhile what is ordinary; whether something is left to `commit`."""
        stands, self._stands = self._stands, False
        if stands:
            time.sleep(STANDS_S)
        if self._has_work():
            return self._group.wait(self._committer, IDLE_S, 0.0)
        return self._group.wait(self._committer, REST_S, UPKEEP_S - (time.monotonic() - self._kept_at))

    def _has_work(self) -> bool:
        """Whether there is something to do that no bell rings for."""
        words = self._shared.words
        evicts = words[Field.EVICT] > words[Field.LOW_WATERMARK]
        return bool(words[Field.FULL] or evicts or self._committer.is_behind or self._quotas.looks)

    def _restock(self) -> None:
        """Make spares, and publish how much room there is."""
        log_bytes = self._committer.number * self._options.segment_bytes + int(self._committer.tail[POSITION])
        self._provision.restock(self._written(), log_bytes)

    def _note_history(self, *, ends: bool = False) -> None:
        """Add a sample to the history, for rates. `ends`: log all refusals that no line counts yet."""
        words, tail = self._shared.words, self._committer.tail
        low_watermark, end = int(words[Field.LOW_WATERMARK]), int(tail[SEQUENCE])
        try:
            ledger = read_ledger(self._layout.ledger)
        except OSError as error:
            log.debug("no sample for the rates: %s", error)
            return
        refused = int(tail[DISCARDED:].sum()) + sum(row.count for row in ledger)
        self._refusals.note(tail, ledger, ends=ends)
        self._history.note(
            int(tail[STORED]) + refused,
            int(words[Field.DELIVERED]),
            int(words[Field.DISCARDED]) + refused,
            waiting_bytes(undelivered(self._layout, low_watermark), end, int(tail[POSITION]), low_watermark),
        )

    def _written(self) -> int:
        """The number of the segment in use, even if it cannot be committed whole."""
        committer = self._committer
        return max(self._shared.place(Field.WRITTEN)[0], committer.number, committer.last)

    def _retire(self) -> None:
        """Rename segments whose messages are all resolved: they are called sent from then on."""
        due = int(self._shared.words[Field.LOW_WATERMARK]), self._committer.number
        if due != self._retired:
            self._stock.retire(due[0])
            self._retired = due

    def _expire(self) -> None:
        """Remove delivered segments whose time is over, or whose room is needed."""
        now = time.monotonic()
        if now - self._expired_at < EXPIRE_S:
            return
        self._expired_at = now
        keep_bytes, hours = self._options.keep_delivered_bytes, self._options.keep_delivered_hours
        self._stock.give_back_reserve()
        if keep_bytes is None and hours is None:
            return
        sent = self._stock.sent()
        ages = self._ages.note(first for first, _ in sent) if hours is not None else {}
        rows = [(first, size, ages.get(first, 0.0)) for first, size in sent]
        if gone := expired(rows, keep_bytes, None if hours is None else hours * 3600.0):
            self._stock.remove(gone)
