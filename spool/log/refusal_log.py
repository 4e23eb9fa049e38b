"""Log lines about messages that the intake refused."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable

from spool.format.frame import DISCARDED, Tail
from spool.format.wire import Reason, reason_name
from spool.shared.ledger import Discards
from spool.throttle import Throttle
from spool.words import agreeing, reason_in_words

log = logging.getLogger("bruce.keeper")

QUIET_S = 60.0
"""Between two lines."""


class RefusalLog:
    """Logs what was refused since the last line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._throttle = Throttle(QUIET_S, clock=clock)
        self._before: Counter[int] | None = None

    def note(self, tail: Tail, ledger: Iterable[Discards], *, ends: bool = False) -> None:
        """Take the present totals of frames and ledger; those of the first call are not logged.

        `ends`: log them at once, as no call follows.
        """
        totals = Counter({reason: int(count) for reason, count in enumerate(tail[DISCARDED:])})
        for row in ledger:
            totals[row.reason] += row.count
        if self._before is None:
            self._before = totals
        if not (news := totals - self._before) or not (self._throttle.due() or ends):
            return
        listed = ", ".join(
            f"{count} {reason_in_words(reason_name(reason))}" for reason, count in news.most_common()
        )
        # Of messages that had no room neither senders nor bytes are kept.
        others = " the others" if Reason.SPOOL_FULL in news else " them"
        further = f"`brucectl status` says who sent{others}, `brucectl discards` has samples"
        log.warning(
            "%s discarded at intake: %s%s",
            agreeing(news.total(), "message", "was", "were"),
            listed,
            f"; {further}" if set(news) - {Reason.SPOOL_FULL} else "",
        )
        self._before = totals
