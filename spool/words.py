"""Counts, sizes, times and reasons as people read them: in sentences, tables and lines of the log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024
_WHOLE = 100
"""From so many of a unit on, no tenths are shown."""
MOST_NAME = 60
"""Characters of a name in a sentence: a topic may have 32,767."""
MOST_TOPIC = 249
"""Characters of a topic's name that are shown in a table: Kafka has none that are longer."""

CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    ord("\t"): "\\t",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
}
"""For str.translate: characters that end a line or command a terminal, and what is shown instead."""

REASONS: Final = {
    "short": "shorter than its header",
    "size": "its size field is not its length",
    "api_key": "of no known kind",
    "api_version": "of an unknown version of the format",
    "flags": "its flags are not known",
    "topic": "no topic, or one that is cut off",
    "timestamp": "it ends before or inside its timestamp",
    "key": "the length of its key is wrong",
    "value": "the length of its value is wrong",
    "truncated": "larger than the largest datagram",
    "poison": "in a burst that failed three times",
    "spool_full": "the spool had no room",
    "damaged": "damaged on the disk",
    "unknown_topic": "Kafka does not have its topic",
    "too_large": "larger than Kafka takes",
    "invalid_record": "Kafka refused its content",
    "over_quota": "its topic had used up its quota",
    "evicted": "given up to make room",
    "rate_limited": "beyond the rate of its topic",
    "unconfirmed": "sent once, and never acknowledged",
    "bad_size": "a size below 4, on a stream",
    "too_long": "larger than a stream may send, or a batch of too many",
    "unclean": "its stream ended inside it",
    "tls": "TLS, spoken to the TCP input",
    "http": "HTTP, spoken to the TCP input",
    "not_permitted": "[access] forbids it to its sender",
    "too_many_topics": "of a new topic beyond max_topics",
    "user_limit": "its user had used up its share of the streams",
    "too_slow": "the rest of it came too late",
    "partitioner": "the partitioner of its topic failed",
    "headers": "its headers are not well-formed",
    "partition": "its topic has no such partition",
}
"""By name of the reason, why a message was discarded."""


def counted(count: int, noun: str, many: str = "") -> str:
    """As "1 segment" or "5,100 segments"; `many` is the plural where an s does not make it."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def agreeing(count: int, noun: str, one: str = "is", many: str = "are") -> str:
    """With the verb that fits, as "1 segment is" or "5,100 segments are"."""
    return f"{counted(count, noun)} {one if count == 1 else many}"


def waiting(count: int) -> str:
    """As "1 message waits" or "5,100 messages wait"."""
    return agreeing(count, "message", "waits", "wait")


def size_in_words(size: float) -> str:
    """Bytes with the unit that fits, as "0", "512 bytes", "33.1 MiB", "4 GiB"."""
    number, unit = size, 0
    while round(number) >= _STEP and unit + 1 < len(_UNITS):
        number, unit = number / _STEP, unit + 1
    text = f"{number:,.0f}" if number >= _WHOLE else f"{number:.1f}".removesuffix(".0")
    return f"{text} {_UNITS[unit]}" if size else "0"


def utc(ns: int, *, ms: bool = False) -> str:
    """A time in ns since the epoch, as 2026-11-21T17:00:00Z; with `ms` as 2026-11-21T17:00:00.000Z."""
    rest = f".{ns // 10**6 % 1000:03d}" if ms else ""
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime(f"%Y-%m-%dT%H:%M:%S{rest}Z")


def reason_in_words(name: str) -> str:
    """A reason with its explanation, as "short (shorter than its header)"."""
    return f"{name} ({REASONS[name]})" if name in REASONS else name


def clipped_line(name: str) -> str:
    """A name from a message, for a sentence: it stays on its line, and commands no terminal."""
    return clipped(name.translate(CONTROLS))


def clipped(text: str, most: int = MOST_NAME) -> str:
    """At most `most` characters of a text; the last one shows that there are more."""
    return text if len(text) <= most else text[: most - 1] + "…"
