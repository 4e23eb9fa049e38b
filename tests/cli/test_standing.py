"""The line that tells a service manager how things stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.standing import describe
from spool.fullness import Full, WhenFull
from spool.page import Field, Page


@pytest.fixture
def page(tmp_path: Path) -> Page:
    """Of a daemon with nothing to say."""
    return Page(tmp_path / "page")


def test_what_was_done(page: Page) -> None:
    """When all is well."""
    page.words[[Field.DELIVERED, Field.DISCARDED]] = (1234, 5)
    assert describe(page.words) == "messages are taken in; 1,234 delivered, 5 discarded"


def test_what_is_wrong_comes_first(page: Page) -> None:
    """Why nothing can be sent, before why there is no room, before who holds the intake; one line each."""
    page.words[Field.HELD] = 1
    assert describe(page.words) == "the intake is stopped by an operator: senders wait"
    page.words[[Field.FULL, Field.WHEN_FULL, Field.FULL_SINCE_NS]] = (Full.MAX_BYTES, WhenFull.BLOCK, 1)
    assert describe(page.words).startswith("the spool is full since ")
    page.write_text(Field.TROUBLE, "no broker can be reached")
    assert describe(page.words) == "no broker can be reached"
