"""A hold, as whoever has it sees it; what the worker makes of it, tests/cli/test_drain_hold.py shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ingest import hold
from ingest.hold import Hold
from spool.errors import SpoolBusy
from spool.layout import Layout
from spool.page import HOLD_NS, Field, Page


def await_true(condition: Callable[[], bool]) -> None:
    """Ask until it is so."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def obey(page: Page) -> None:
    """Do as the worker does."""
    page.words[Field.HELD] = page.words[Field.HOLD]


@pytest.fixture
def path(memory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page of a daemon lies; holds are renewed quickly."""
    monkeypatch.setattr(hold, "RENEW_S", 0.01)
    return memory / "page"


def test_it_stands_once_the_worker_says_so(memory: Path, path: Path) -> None:
    """Not before, and not by what the worker said to the one before; at the end it is given back."""
    page = Page(path)
    page.words[Field.HELD] = time.monotonic_ns()
    with Hold(Layout(memory), path) as held:
        assert not held.stands()
        assert 0 < page.words[Field.HOLD] - time.monotonic_ns() <= HOLD_NS
        obey(page)
        assert held.stands()
        first = int(page.words[Field.HOLD])
        await_true(lambda: int(page.words[Field.HOLD]) > first)
        assert held.stands()
        with pytest.raises(SpoolBusy):
            Hold(Layout(memory), path)
    assert page.words[Field.HOLD] == 0


def test_one_that_ran_out_was_none(memory: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stood still for too long has to be obeyed once more: messages may have come meanwhile."""
    page = Page(path)
    with Hold(Layout(memory), path) as held:
        obey(page)
        assert held.stands()
        page.words[Field.HOLD] = 1
        await_true(lambda: int(page.words[Field.HOLD]) > 1)
        await_true(lambda: not held.stands())
        obey(page)
        assert held.stands()


def test_a_daemon_that_is_started_again_is_held_too(memory: Path, path: Path) -> None:
    """Its page is another one; until it says so, the hold does not stand."""
    with Hold(Layout(memory), path) as held:
        assert not held.stands()
        obey_first = Page(path)
        await_true(lambda: int(obey_first.words[Field.HOLD]) > 0)
        obey(obey_first)
        assert held.stands()
        path.unlink()
        assert not held.stands()
        page = Page(path)
        assert not held.stands()
        await_true(lambda: int(page.words[Field.HOLD]) > 0)
        assert not held.stands()
        obey(page)
        assert held.stands()
