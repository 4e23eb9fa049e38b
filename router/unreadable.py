"""Unreadable ranges of messages (EIO): skipped, kept undelivered, tried again.

A reader that comes to a bad place goes on behind it (spool.read.reader). The messages there are neither
delivered nor lost: the low watermark stays before them, so that nothing of it is freed, and every RETRY_S it
is looked at again. When the disk gives it, a pass goes over it (router.catch_up), as over anything that had
to stay behind.

So messages of a partition that are in an unreadable range are delivered after those behind it. Rejected:
holding the partitions of the topics in it. One bad sector would stop them for good, and only the footer says
which topics these are, if it can be read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from router.context import Log
from spool.index.segment_list import RETRY_S
from spool.read.reader import Unread
from spool.words import counted

_log = logging.getLogger("bruce.router")

_MOST_NAMES = 3
"""Of segments, in a sentence."""
_WHAT_TO_DO = (
    "they stay in the spool, with all behind them, and are tried again every {:.0f} s: see to the disk, or, "
    "if it stays so, stop bruce and ask brucectl inspect repair"
)


class UnreadableRanges:
    """All that are known. For the router's thread."""

    def __init__(self, log: Log, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._readers = log.live, log.catch_up
        self._probe, self._committed = log.probe(), log.committed
        self._clock = clock
        self._open: dict[int, Unread] = {}
        """By first sequence."""
        self._due: dict[int, float] = {}
        """When each is looked at again."""

    def _note(self) -> None:
        """Take over what the readers have passed by."""
        for reader in self._readers:
            for one in reader.take_unread():
                if any(span.first <= one.first and one.end <= span.end for span in self._open.values()):
                    continue
                _log.error("%s; the messages there are skipped, and tried again", one.error)
                self._keep(one)

    def lowest(self) -> list[int]:
        """The first message of each."""
        self._note()
        return list(self._open)

    def sentence(self) -> str:
        """The trouble and what to do; empty when there is none."""
        self._note()
        if not self._open:
            return ""
        ranges = sorted(self._open.values(), key=lambda span: span.first)
        names = list(dict.fromkeys(Path(str(span.error.filename)).name for span in ranges))
        shown = ", ".join(names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        count = reached = 0
        for span in ranges:
            # Each reader finds its own way over a bad place.
            count += max(0, span.end - max(reached, span.first))
            reached = max(reached, span.end)
        messages = f"{counted(count, 'message')} of" if count else "messages of"
        return (
            f"the disk does not give {messages} {shown}{more} ({ranges[0].error.strerror}); "
            + _WHAT_TO_DO.format(RETRY_S)
        )

    def look(self, low_watermark: int) -> Iterable[int]:
        """Try one again that is due. Yields where a pass is to begin, when some of it can be read.

        One at a time: a disk may take seconds to say that it cannot. A range below the low watermark was
        given up.
        """
        self._note()
        for first in [
            first for first, span in self._open.items() if max(span.end, first + 1) <= low_watermark
        ]:
            self._drop(first)
        due = next((first for first, at in self._due.items() if at <= self._clock()), None)
        if due is None:
            return
        span = self._drop(due)
        left = self._read(span)
        for one in left:
            self._keep(one)
        if [(one.first, one.end) for one in left] != [(span.first, span.end)]:
            _log.warning("%s can be read again, from message %d on", span.error.filename, span.first)
            yield span.first

    def _read(self, span: Unread) -> list[Unread]:
        """The parts of it that still cannot be read."""
        reader = self._probe
        reader.allow(*self._committed())
        reader.seek(span.first)
        while reader.sequence < max(span.end, span.first + 1) and reader.next() is not None:
            continue
        reader.close()
        reader.take_damage()
        left = [
            Unread(max(one.first, span.first), min(one.end, span.end), one.error)
            for one in reader.take_unread()
        ]
        return [one for one in left if one.first < one.end or one.first == one.end == span.first == span.end]

    def _keep(self, span: Unread) -> None:
        self._open[span.first], self._due[span.first] = span, self._clock() + RETRY_S

    def _drop(self, first: int) -> Unread:
        del self._due[first]
        return self._open.pop(first)

    def close(self) -> None:
        """Let go of the segment that was read last."""
        self._probe.close()
