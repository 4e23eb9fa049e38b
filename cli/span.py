"""Which messages a command is to work on, as people write it: `--from`, `--to` and `--topic`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from cli.errors import BadArgument
from spool.files import FOR_EVER, Span

_SEQUENCE = re.compile(r"[0-9]{1,18}")
_DIGITS = re.compile(r"[0-9]{19,}")
_AGO = re.compile(r"-([0-9]{1,9})([smhd])")
_LENGTH = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Place(NamedTuple):
    """A sequence number, or a time of reception in ns since the epoch."""

    value: int
    is_time: bool


def parse_place(option: str, text: str, now_ns: int) -> Place:
    """The place that "4711", "2026-03-01T12:00", "2026-03-01 12:00:00+01:00" or "-2h" stands for.

    A time without an offset is local. Raises BadArgument, naming `option`.
    """
    if _SEQUENCE.fullmatch(text):
        return Place(int(text), is_time=False)
    if ago := _AGO.fullmatch(text):
        return Place(now_ns - int(ago[1]) * _SECONDS[ago[2]] * 10**9, is_time=True)
    try:
        # Which would take a long number for a date without its dashes.
        seconds = datetime.fromisoformat(_DIGITS.sub("", text)).timestamp()
    except (ValueError, OverflowError):
        raise BadArgument(
            f"{option} {text!r}: expected a sequence number, a time such as 2026-03-01T12:00:00, "
            "or how long ago, such as -2h"
        ) from None
    return Place(round(seconds * 1e6) * 1000, is_time=True)


def parse_length(option: str, text: str) -> int:
    """The seconds that "10s", "5m", "1h" or "1d" stands for. Raises BadArgument, naming `option`."""
    found = _LENGTH.fullmatch(text)
    if not found:
        raise BadArgument(f"{option} {text}: expected a length of time, as 10s, 5m, 1h or 1d")
    return int(found[1]) * _SECONDS[found[2]]


def parse_span(
    since: str | None, until: str | None, topics: Iterable[str] = (), *, now_ns: int | None = None
) -> Span:
    """The messages from one place up to, but not including, another. Raises BadArgument."""
    now = time.time_ns() if now_ns is None else now_ns
    limits: dict[str, int] = {}
    if since is not None:
        start = parse_place("--from", since, now)
        limits["from_ns" if start.is_time else "first"] = start.value
    if until is not None:
        stop = parse_place("--to", until, now)
        limits["to_ns" if stop.is_time else "end"] = stop.value
    span = Span(**limits, topics=frozenset(topic.encode(errors="surrogateescape") for topic in topics))
    if span.first > span.end or (span.from_ns > span.to_ns and span.to_ns != FOR_EVER):
        raise BadArgument(f"--from {since} lies behind --to {until}")
    return span
