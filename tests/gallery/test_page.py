"""docs/damage-*.md are what the gallery says."""

from __future__ import annotations

from tools.gen_damage import PAGES, render


def test_the_pages_are_current() -> None:
    """`python -m tools.gen_damage` writes them."""
    assert render() == {page: page.read_text(encoding="utf-8") for page in PAGES}
