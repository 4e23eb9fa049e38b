"""Messages that the disk does not give at present: passed by, kept open, tried again.

A reader that comes to a bad place goes on behind it (spool.reader). What lay there is neither delivered nor
lost: the floor stays before it, so that nothing of it is freed, and every RETRY_S it is looked at again. When
the disk gives it, a pass goes over it (router.catch_up), as over anything that had to stay behind.

So messages of a partition that lie in a gap are delivered after those behind it. Rejected: holding the
partitions of the topics in it. One bad sector would stop them for good, and only the footer says which topics
these are, if it can be read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from router.ends import Log
from spool.catalogue import RETRY_S
from spool.reader import Reader, Unread

_log = logging.getLogger("bruce.router")

_MOST_NAMES = 3
"""Of segments, in a sentence."""
_WHAT_TO_DO = (
    "they stay in the spool, with all behind them, and are tried again every {:.0f} s: see to the disk, or, "
    "if it stays so, stop bruce and ask brucectl inspect repair"
)


class Gaps:
    """All that are known. For the router's thread."""

    def __init__(self, log: Log, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._readers = log.live, log.again
        self._probe, self._committed = Reader(log.live.catalogue, log.live.topics), log.committed
        self._clock = clock
        self._open: dict[int, Unread] = {}
        """By first sequence."""
        self._due: dict[int, float] = {}
        """When each is looked at again."""

    def _note(self) -> None:
        """Take over what the readers have passed by."""
        for reader in self._readers:
            for first, one in reader.unread.items():
                if any(gap.first <= first and one.end <= gap.end for gap in self._open.values()):
                    continue
                _log.error("%s; what lies there is passed by, and tried again", one.error)
                self._keep(one)
            reader.unread.clear()

    def lowest(self) -> list[int]:
        """The first message of each."""
        self._note()
        return list(self._open)

    def sentence(self) -> str:
        """What is wrong and what to do; empty when nothing is."""
        self._note()
        if not self._open:
            return ""
        gaps = sorted(self._open.values(), key=lambda gap: gap.first)
        names = list(dict.fromkeys(Path(str(gap.error.filename)).name for gap in gaps))
        shown = ", ".join(names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        count = reached = 0
        for gap in gaps:
            # Each reader finds its own way over a bad place.
            count += max(0, gap.end - max(reached, gap.first))
            reached = max(reached, gap.end)
        messages = f"{count} messages of" if count else "messages of"
        return (
            f"the disk does not give {messages} {shown}{more} ({gaps[0].error.strerror}); "
            + _WHAT_TO_DO.format(RETRY_S)
        )

    def look(self, floor: int) -> Iterable[int]:
        """Try one again that is due. Yields where a pass is to begin, when some of it can be read.

        One at a time: a disk may take seconds to say that it cannot. What lies below the floor was given up.
        """
        self._note()
        for first in [first for first, gap in self._open.items() if max(gap.end, first + 1) <= floor]:
            self._drop(first)
        due = next((first for first, at in self._due.items() if at <= self._clock()), None)
        if due is None:
            return
        gap = self._drop(due)
        left = self._read(gap)
        for one in left:
            self._keep(one)
        if [(one.first, one.end) for one in left] != [(gap.first, gap.end)]:
            _log.warning("%s can be read again, from message %d on", gap.error.filename, gap.first)
            yield gap.first

    def _read(self, gap: Unread) -> list[Unread]:
        """What of it still cannot be read."""
        reader = self._probe
        reader.allow(*self._committed())
        reader.seek(gap.first)
        while reader.sequence < max(gap.end, gap.first + 1) and reader.next() is not None:
            continue
        reader.close()
        reader.damage.clear()
        left = [
            Unread(max(one.first, gap.first), min(one.end, gap.end), one.error)
            for one in reader.unread.values()
        ]
        reader.unread.clear()
        return [one for one in left if one.first < one.end or one.first == one.end == gap.first == gap.end]

    def _keep(self, gap: Unread) -> None:
        self._open[gap.first], self._due[gap.first] = gap, self._clock() + RETRY_S

    def _drop(self, first: int) -> Unread:
        del self._due[first]
        return self._open.pop(first)

    def close(self) -> None:
        """Let go of the segment that was read last."""
        self._probe.close()
