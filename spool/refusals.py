"""Messages that are discarded at intake, in the log: the first at once, then a line a minute with the others.

Nobody enters Python for one of them: the keeper compares what the books count now and then.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable

from spool.frame import DISCARDED, Tail
from spool.ledger import Discards
from spool.wire import reason_name

log = logging.getLogger("bruce.spool")

QUIET_S = 60.0
"""Between two lines."""


class RefusalLog:
    """Says what was refused since the last line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: Counter[int] | None = None
        self._said_at = -math.inf

    def note(self, tail: Tail, ledger: Iterable[Discards]) -> None:
        """What the frames and the ledger count by now; what they count at the first call is no news."""
        totals = Counter({reason: int(count) for reason, count in enumerate(tail[DISCARDED:])})
        for row in ledger:
            totals[row.reason] += row.count
        if self._before is None:
            self._before = totals
        if self._clock() - self._said_at < QUIET_S or not (news := totals - self._before):
            return
        listed = ", ".join(f"{reason_name(reason)} {count}" for reason, count in news.most_common())
        log.warning(
            "%d messages were discarded at intake: %s; `brucectl status` says who sent them, "
            "`brucectl discards` has samples",
            news.total(),
            listed,
        )
        self._before, self._said_at = totals, self._clock()
