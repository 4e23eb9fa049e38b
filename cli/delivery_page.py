"""What the delivery worker tells of itself in the shared page, for `status` and all who look on."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from cli.delivery import Progress
from cli.delivery_log import DeliveryLog
from cli.snapshot import ROLES
from spool.histogram import LATENCY_WORDS
from spool.page import BROKER_ROWS, BROKER_WORDS, Field, Page


class DeliveryPage:
    """One delivery worker's part of the page."""

    def __init__(self, page: Page) -> None:
        """Of a worker before this one nothing stays that is true of a living one only."""
        self._page = page
        page.write_text(Field.TROUBLE, "")
        page.write_text(Field.UNREAD, "")
        self._unread = ""
        self._trouble, self._metadata_asked = "", int(page.words[Field.METADATA_WANTED])
        self._log = DeliveryLog()

    @property
    def latency(self) -> npt.NDArray[np.int64]:
        """The histogram of latencies (spool.histogram), to be added to."""
        return self._page.words[Field.LATENCY :][:LATENCY_WORDS]

    def report(self, progress: Progress) -> None:
        """Publish what only the deliverer knows; it tells it again and again."""
        self._page.beat(ROLES.index("delivery"))
        self._say_trouble(progress.trouble)
        if progress.unread != self._unread:
            self._unread = progress.unread
            self._page.write_text(Field.UNREAD, progress.unread)
        self._log.note_trouble(progress.trouble)
        self._log.note_brokers((broker.id, broker.state) for broker in progress.brokers)
        words = self._page.words
        words[Field.FLOOR] = progress.floor
        words[[Field.DELIVERED, Field.DISCARDED]] += progress.counts
        rows = [(b.id, b.state, b.offset, b.in_flight, b.acked) for b in progress.brokers[:BROKER_ROWS]]
        if rows:
            words[Field.BROKERS + 1 :][: BROKER_WORDS * len(rows)] = np.array(rows, np.int64).ravel()
        words[Field.BROKERS] = len(rows)
        if progress.times is not None:
            times = progress.times[:BROKER_ROWS].ravel()
            words[Field.BROKER_TIMES :][: len(times)] = times
        words[Field.HANDED_OVER] += progress.handed_over
        words[[Field.METADATA_NS, Field.METADATA_CHANGED_NS]] = progress.metadata
        words[[Field.METADATA_ANSWERS, Field.METADATA_FAILURES]] += progress.asked

    def wants_metadata(self) -> bool:
        """Whether the status worker was asked for a fetch since the last call."""
        before, self._metadata_asked = self._metadata_asked, int(self._page.words[Field.METADATA_WANTED])
        return self._metadata_asked != before

    def _say_trouble(self, trouble: str) -> None:
        """Publish why nothing can be sent; the last reason stays there to be read when it is over."""
        if trouble:
            self._page.words[Field.LAST_TROUBLE_NS] = time.time_ns()
        if trouble == self._trouble:
            return
        self._trouble = trouble
        self._page.write_text(Field.TROUBLE, trouble)
        if trouble:
            self._page.write_text(Field.LAST_TROUBLE, trouble)
