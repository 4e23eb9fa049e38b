"""The keeper: everything that may wait for the disk, in a process of its own.

It makes spare segments ahead of need, commits what was written, seals full segments, and retires
delivered ones. Only it changes the files of the log; the appender stores bytes, the deliverer reads.
"""

from __future__ import annotations

import logging
import math
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress

from spool.ages import Ages
from spool.banks import make_banks
from spool.committer import Committer
from spool.crash_point import reach
from spool.errors import ReadFailed, SpoolFull
from spool.frame import BURST, DISCARDED, POSITION, SEQUENCE, STORED
from spool.history import History
from spool.index import Index
from spool.layout import Layout
from spool.ledger import LedgerCopy, read_ledger
from spool.options import ALWAYS, SpoolOptions
from spool.packer import Packer
from spool.page import Field, Page, no_beat
from spool.provision import Provision
from spool.quotas import Quotas
from spool.refusals import RefusalLog
from spool.retention import Stock, expired, undelivered
from spool.room import waiting_bytes
from spool.scan import Chunk
from spool.segment import Identity
from spool.senders import SenderTable

log = logging.getLogger("bruce.keeper")

IDLE_S = 0.2
"""Longest sleep without a bell: spares and retention are looked after at least this often."""
COPY_S = 1.0
"""Between two copies of the ledger, and of who sent how much."""
STANDS_S = 0.02
"""Between two attempts to commit, while the watermark stands: before damage, or a suspect segment."""
UNREAD_S = 1.0
"""Between two attempts to read back what the disk does not give: each may take it seconds."""
EXPIRE_S = 1.0
"""Between two looks for delivered segments that may go."""


class Keeper:
    """The keeper of one spool."""

    def __init__(
        self,
        layout: Layout,
        identity: Identity,
        options: SpoolOptions,
        page: Page,
        *,
        bell: int,
        announce: Callable[[], None],
    ) -> None:
        """`bell`: the eventfd that the appender rings. `announce`: called when the watermark has moved."""
        self.stopping = False
        self.beat: Callable[[], None] = no_beat
        self._layout, self._options, self._page = layout, options, page
        self._bell, self._announce = bell, announce
        self._index = Index(layout.index, identity.spool, identity.boot)
        with suppress(SpoolFull):
            # While there is room for it.
            make_banks(layout.refused)
        self._stock = Stock(layout, identity, options)
        self._stock.leaving = self._save_senders
        self._quotas = Quotas(layout, page, options.quotas, options.max_bytes)
        self._committer = Committer(layout, self._index, page)
        self._senders = SenderTable(layout)
        self._committer.seen = self._see
        if self._committer.commit_all():
            self._senders.begin(self._committed())
        reach("recover.walked")
        # Behind the last one in use, however far it can be committed.
        self._provision = Provision(self._stock, page, max(self._committer.number, self._committer.last))
        self._ages = Ages(layout.ages)
        self._history = History(page.words)
        self._refusals = RefusalLog()
        page.words[Field.MAX_BYTES] = options.max_bytes
        page.words[Field.MIN_FREE_BYTES] = -1 if options.min_free_bytes is None else options.min_free_bytes
        self._synced_at, self._expired_at = time.monotonic(), -math.inf
        self._retired = (0, 0)
        self._stands = self._unread = False
        self._again_at = -math.inf
        self._packer = Packer(layout) if options.recompress else None
        self._ledger: LedgerCopy | None = None
        self._copied_at, self._copy_fails = -math.inf, False
        self._announce()

    def run(self) -> None:
        """Keep until told to stop; then commit what is left, and seal."""
        while not self.stopping:
            self.beat()
            self.step()
            self._wait()
        # Whoever appends was stopped before.
        self._committer.ended = True
        self.commit()
        # Once more, should a sync have failed: from a fresh file.
        self.commit()
        self._committer.seal_last()
        if self._packer:
            self._packer.close()
        if self._options.keep_delivered_hours is not None:
            self._ages.save()
        self._copied_at = -math.inf
        self._copy_books()
        self._senders.close()
        if self._ledger:
            self._ledger.close()
            self._ledger = None
        self._index.close()

    def step(self) -> None:
        """Everything that is due now. An OSError shows in the page until a commit succeeds."""
        try:
            self.commit()
            self._retire()
            self._expire()
            self._restock()
            self._quotas.look()
            self._committer.seal_one()
            if self._packer:
                self._packer.step()
            self._copy_books()
            if self._history.due():
                self._note_history()
        except OSError as error:
            self._page.words[Field.SYNC_ERROR] = error.errno or -1
            raise

    def commit(self) -> None:
        """Commit what the appender announced."""
        word = int(self._page.words[Field.WRITTEN])
        self._synced_at, self._stands = time.monotonic(), False
        if word == int(self._page.words[Field.SYNCED]):
            return
        if time.monotonic() < self._again_at and not self.stopping:
            self._stands = True
            return
        before = int(self._page.words[Field.SYNCED])
        try:
            self._committer.commit(*self._page.place(Field.WRITTEN))
            self._unread = False
        except ReadFailed as error:
            self._note_unread(error)
        reach("sync.published")
        self._stands = before == int(self._page.words[Field.SYNCED])
        self._announce()

    def _note_unread(self, error: ReadFailed) -> None:
        """The segment in use cannot be read back: nothing behind that place is synced, or delivered."""
        self._page.words[Field.SYNC_ERROR] = error.errno or -1
        self._again_at = time.monotonic() + UNREAD_S
        if not self._unread:
            log.error("%s; what is not committed waits for it, and is tried again every second", error)
        self._unread = True

    def _see(self, first: int, chunk: Chunk) -> None:
        """These frames are about to be committed."""
        self._quotas.add(first, chunk)
        self._senders.add(chunk)

    def _committed(self) -> int:
        """The last burst that is."""
        return int(self._committer.tail[BURST])

    def _save_senders(self) -> None:
        self._senders.save(self._committed())

    def _copy_books(self) -> None:
        """Sync what is counted beside the log, so that power loss takes COPY_S of it at most."""
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

    def _wait(self) -> None:
        """Sleep until something is written and its interval, or its share of sync_bytes, is over."""
        words = self._page.words
        if words[Field.WRITTEN] == words[Field.SYNCED]:
            words[Field.KEEPER_WAITS] = 1
            if words[Field.WRITTEN] == words[Field.SYNCED]:
                self._sleep(IDLE_S)
            words[Field.KEEPER_WAITS] = 0
        if self._stands:
            time.sleep(STANDS_S)
        interval = 0.0 if self._options.sync == ALWAYS else self._options.sync_interval_ms / 1000
        while (left := self._synced_at + interval - time.monotonic()) > 0 and not self._much_unsynced():
            time.sleep(min(left, interval / 8))

    def _sleep(self, seconds: float) -> None:
        if select.select([self._bell], [], [], seconds)[0]:
            os.eventfd_read(self._bell)

    def _much_unsynced(self) -> bool:
        written, synced = (self._page.place(f) for f in (Field.WRITTEN, Field.SYNCED))
        return written[0] != synced[0] or written[1] - synced[1] >= self._options.sync_bytes

    def _restock(self) -> None:
        """Have spares, and say how much room there is."""
        log_bytes = self._committer.number * self._options.segment_bytes + int(self._committer.tail[POSITION])
        self._provision.restock(self._written(), log_bytes)

    def _note_history(self) -> None:
        """Leave a sample of what happens, for rates."""
        words, tail = self._page.words, self._committer.tail
        floor, end = int(words[Field.FLOOR]), int(tail[SEQUENCE])
        ledger = read_ledger(self._layout.ledger)
        refused = int(tail[DISCARDED:].sum()) + sum(row.count for row in ledger)
        self._refusals.note(tail, ledger)
        self._history.note(
            int(tail[STORED]) + refused,
            int(words[Field.DELIVERED]),
            int(words[Field.DISCARDED]) + refused,
            waiting_bytes(undelivered(self._layout, floor), end, int(tail[POSITION]), floor),
        )

    def _written(self) -> int:
        """The number of the segment in use, however far it can be committed."""
        committer = self._committer
        return max(self._page.place(Field.WRITTEN)[0], committer.number, committer.last)

    def _retire(self) -> None:
        """Call segments sent whose messages are all resolved."""
        due = int(self._page.words[Field.FLOOR]), self._committer.number
        if due != self._retired:
            self._stock.retire(due[0])
            self._retired = due

    def _expire(self) -> None:
        """Remove delivered segments that nobody wants kept, or whose room others need."""
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
