"""Sending again what the discard file has: through the daemon's socket, as new messages."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from cli.errors import BadArgument
from cli.progress import Show
from cli.replay import Replayed
from cli.sending import Address, send_all
from spool.discard_file import GivenUp, older, read_discard_file
from spool.files import Span
from spool.sought import TopicCount
from spool.wire import split_topic, with_topic


class Again:
    """What one discard file has of a span: sequence numbers, times of the discard, topics."""

    def __init__(self, path: Path | None, span: Span, to_topic: str | None) -> None:
        """Raises BadArgument when there is no such file, BadSpool, OSError."""
        if path is None:
            raise BadArgument("no discard file is kept: name one in [dispatch] discard_file")
        if not path.exists() and not older(path).exists():
            raise BadArgument(
                f"there is no discard file {path}: nothing was discarded since it was configured"
            )
        self._started = time.monotonic()
        self._to_topic = to_topic.encode(errors="surrogateescape") if to_topic else None
        self._messages = [one for one in read_discard_file(path) if _asked_for(one, span)]

    def count(self) -> Replayed:
        """Send nothing."""
        return self._result(0)

    def send(self, socket: Path, stream: Address | None, show: Show, timeout_s: float | None) -> Replayed:
        """Hand all of them to the daemon, waiting for room. Raises what cli.sending.send_all does."""
        until = self._started + timeout_s if timeout_s is not None else math.inf

        def datagrams() -> Iterator[bytes]:
            for taken, one in enumerate(self._messages):
                show(taken, len(self._messages))
                yield one.datagram if self._to_topic is None else with_topic(one.datagram, self._to_topic)

        return self._result(send_all(socket, datagrams(), stream, until=until))

    def _result(self, sent: int) -> Replayed:
        return Replayed(
            topics=_count(self._messages),
            messages=len(self._messages),
            sent=sent,
            refused={},
            left=len(self._messages) - sent,
            seconds=time.monotonic() - self._started,
            reachable=True,
            kept_from=0,
            resume_from=min((one.time_ns for one in self._messages[sent:]), default=None),
        )


def _count(messages: Iterable[GivenUp]) -> list[TopicCount]:
    """By topic; the times are those of the discard."""
    times: dict[bytes, list[int]] = {}
    for one in messages:
        times.setdefault(split_topic(one.datagram)[1], []).append(one.time_ns)
    return [
        TopicCount(name.decode("utf-8", "backslashreplace"), len(when), min(when), max(when))
        for name, when in sorted(times.items())
    ]


def _asked_for(one: GivenUp, span: Span) -> bool:
    if not (span.first <= one.sequence < span.end and span.from_ns <= one.time_ns < span.to_ns):
        return False
    return not span.topics or split_topic(one.datagram)[1] in span.topics
