"""Sizes as people write them: 268435456 or "256MiB"."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"([0-9]+) ?([A-Za-z]*)")


def parse_size(text: str) -> int:
    """The bytes that "64MiB", "64 MiB" or "67108864" stand for.

    Raises ValueError for anything else: decimal units too, since who writes "64MB" may mean either.
    """
    found = _SIZE.fullmatch(text)
    if not found or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is no size")
    return int(found[1]) * _UNITS[found[2]]


def format_size(size_bytes: int) -> str:
    """The shortest text that `parse_size` reads as exactly this many bytes."""
    unit = max((unit for unit in _UNITS if size_bytes % _UNITS[unit] == 0), key=lambda unit: _UNITS[unit])
    return f"{size_bytes // _UNITS[unit]}{unit}" if size_bytes else "0"
