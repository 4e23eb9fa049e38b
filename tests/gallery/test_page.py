"""docs/damage.md is what the gallery says."""

from __future__ import annotations

from tools.gen_damage import PAGE, render


def test_the_page_is_current() -> None:
    """`python -m tools.gen_damage` writes it."""
    assert render() == PAGE.read_text(encoding="utf-8")
