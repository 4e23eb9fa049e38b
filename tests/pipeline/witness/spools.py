"""Spools whose segments go."""

from __future__ import annotations

from spool.layout import SENT
from spool.log.retention import Stock
from tests.spool.fixture import SpoolFixture


def leave(spool: SpoolFixture, segments: int) -> None:
    """Let the oldest segments go, as the keeper does."""
    for first, suffix in spool.layout.list_segments()[:segments]:
        spool.layout.segment(first, suffix).rename(spool.layout.segment(first, SENT))
    stock = Stock(spool.layout, spool.identity, spool.options)
    stock.remove([first for first, _ in spool.layout.list_segments()[:segments]])
