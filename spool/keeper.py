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

from spool.committer import Committer
from spool.crash_point import reach
from spool.errors import SpoolFull
from spool.frame import POSITION
from spool.index import Index
from spool.layout import SPARE, Layout
from spool.ledger import LedgerCopy
from spool.options import ALWAYS, SpoolOptions
from spool.packer import Packer
from spool.page import Field, Page
from spool.retention import AHEAD_S, Stock, most_spares
from spool.segment import Identity

log = logging.getLogger("bruce.keeper")

IDLE_S = 0.2
"""Longest sleep without a bell: spares and retention are looked after at least this often."""
COPY_S = 1.0
"""Between two copies of the ledger."""
STANDS_S = 0.02
"""Between two attempts to commit, while the watermark stands: before damage, or a suspect segment."""


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
        self._layout, self._options, self._page = layout, options, page
        self._bell, self._announce = bell, announce
        self._index = Index(layout.index, identity.boot)
        self._stock = Stock(layout, identity, options)
        self._committer = Committer(layout, self._index, page)
        self._committer.commit_all()
        reach("recover.walked")
        # Behind the last one in use, however far it can be committed.
        self._next_spare = max(self._committer.number, self._committer.last) + 1
        while layout.segment(self._next_spare, SPARE).exists():
            self._next_spare += 1
        self._offer(2)
        self._synced_at = self._counted_at = time.monotonic()
        self._counted, self._rate = self._log_bytes(), 0.0
        self._retired = (0, 0)
        self._stands = False
        self._packer = Packer(layout) if options.recompress else None
        self._ledger: LedgerCopy | None = None
        self._copied_at, self._copy_fails = -math.inf, False
        self._announce()

    def run(self) -> None:
        """Keep until told to stop; then commit what is left, and seal."""
        while not self.stopping:
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
        self._copied_at = -math.inf
        self._copy_ledger()
        if self._ledger:
            self._ledger.close()
            self._ledger = None
        self._index.close()

    def step(self) -> None:
        """Everything that is due now. An OSError shows in the page until a commit succeeds."""
        try:
            self.commit()
            self._restock()
            self._retire()
            self._committer.seal_one()
            if self._packer:
                self._packer.step()
            self._copy_ledger()
        except OSError as error:
            self._page.words[Field.SYNC_ERROR] = error.errno or -1
            raise

    def commit(self) -> None:
        """Commit what the appender announced."""
        word = int(self._page.words[Field.WRITTEN])
        self._synced_at, self._stands = time.monotonic(), False
        if word == int(self._page.words[Field.SYNCED]):
            return
        before = int(self._page.words[Field.SYNCED])
        self._committer.commit(*self._page.place(Field.WRITTEN))
        reach("sync.published")
        self._stands = before == int(self._page.words[Field.SYNCED])
        self._announce()

    def _copy_ledger(self) -> None:
        """Sync what was discarded without room, so that power loss takes COPY_S of it at most."""
        if time.monotonic() - self._copied_at < COPY_S:
            return
        self._copied_at = time.monotonic()
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

    def _log_bytes(self) -> int:
        """Bytes ever written to the log, near enough for a rate."""
        return self._committer.number * self._options.segment_bytes + int(self._committer.tail[POSITION])

    def _restock(self) -> None:
        """Have spares for AHEAD_S at the present rate; when there is no room, say so to the appender."""
        now, written = time.monotonic(), self._written()
        if now - self._counted_at >= 0.5:
            self._rate = (self._log_bytes() - self._counted) / (now - self._counted_at)
            self._counted, self._counted_at = self._log_bytes(), now
        ahead = 1 + max(1, math.ceil(self._rate * AHEAD_S / self._options.segment_bytes))
        ahead = min(ahead, most_spares(self._options))
        while self._next_spare <= written + ahead:
            try:
                self._stock.make_spare(self._next_spare)
            except SpoolFull as error:
                if self._next_spare <= written + 1:
                    if not self._page.words[Field.FULL]:
                        log.error("%s; new messages are discarded until there is room", error)
                    self._page.words[Field.FULL] = 1
                return
            reach("roll.made")
            self._next_spare += 1
            self._offer(min(2, ahead))

    def _written(self) -> int:
        """The number of the segment in use."""
        committer = self._committer
        return max(self._page.place(Field.WRITTEN)[0], committer.number, committer.last)

    def _offer(self, least: int) -> None:
        """Let the appender have the spares; after the spool was full, only when there are `least` of them."""
        words = self._page.words
        if words[Field.FULL] and self._next_spare - 1 - self._written() < least:
            return
        words[Field.SPARE] = self._next_spare - 1
        if words[Field.FULL]:
            log.warning("there is room again; new messages are accepted")
        words[Field.FULL] = 0

    def _retire(self) -> None:
        """Call segments sent whose messages are all resolved."""
        due = int(self._page.words[Field.FLOOR]), self._committer.number
        if due != self._retired:
            self._stock.retire(due[0])
            self._retired = due
