"""Counts, sizes and reasons in words."""

from __future__ import annotations

import pytest

from spool.format.wire import Reason, reason_name
from spool.words import REASONS, clipped, clipped_line, counted, reason_in_words, size_in_words, utc, waiting


def test_one_is_one() -> None:
    """One has no plural; thousands have commas."""
    assert [waiting(n) for n in (1, 2)] == ["1 message waits", "2 messages wait"]
    assert [counted(n, "segment") for n in (0, 1, 5100)] == ["0 segments", "1 segment", "5,100 segments"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0"),
        (1023, "1,023 bytes"),
        (1 << 10, "1 KiB"),
        (34_668_544, "33.1 MiB"),
        (256 << 20, "256 MiB"),
        (4 << 30, "4 GiB"),
        ((1 << 20) - 513, "1,023 KiB"),
        ((1 << 20) - 511, "1 MiB"),
        ((1 << 30) - 1, "1 GiB"),
        ((100 << 20) - 1, "100 MiB"),
        (3 << 60, "3,072 PiB"),
    ],
)
def test_a_size_has_the_unit_that_fits(size: int, text: str) -> None:
    """Tenths below a hundred of the unit, where there are any; 1,024 of a unit are one of the next."""
    assert size_in_words(size) == text


def test_every_reason_has_words() -> None:
    """A reason that discards messages is explained wherever people see its name."""
    assert set(REASONS) == {reason_name(reason) for reason in Reason if reason}
    assert reason_in_words("short") == "short (shorter than its header)"
    assert reason_in_words("reason_77") == "reason_77"


def test_times_are_in_utc() -> None:
    """With their zone; to the ms where it is asked for."""
    moment_ns = 1_795_280_400_012_999_999
    assert utc(moment_ns) == "2026-11-21T17:00:00Z"
    assert utc(moment_ns, ms=True) == "2026-11-21T17:00:00.012Z"


def test_long_names_are_cut() -> None:
    """A topic may have 32,767 bytes."""
    assert clipped("t" * 32_767) == "t" * 59 + "…"
    assert clipped("t" * 60) == "t" * 60


def test_a_name_in_a_sentence_commands_no_terminal() -> None:
    """Control characters are shown as text, and do not make it longer than others."""
    assert clipped_line("a\x1b[31m\t\nb\x9b") == r"a\x1b[31m\t\nb\x9b"
    assert len(clipped_line("\x1b" * 60)) == 60
