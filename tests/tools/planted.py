"""The planted bugs that a fuzzer must find."""

from __future__ import annotations

from spool.native.memory import address_of, load_u8
from tools.fuzzers.wall import Wall

_wall = Wall(1 << 12)


def error(data: bytes) -> None:
    """An exception that no target expects."""
    if data[:1] == b"x":
        raise KeyError(data)


def over_read(data: bytes) -> None:
    """A parser that believes a length."""
    load_u8(address_of(_wall.place(data)) + len(data))
