"""Counts, sizes and reasons in words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spool.format.wire import Reason, reason_name
from spool.words import (
    REASONS,
    agreeing,
    clipped,
    clipped_line,
    counted,
    reason_in_words,
    size_in_words,
    utc,
    waiting,
)

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cli", "dispatch", "ingest", "pipeline", "router", "spool", "status", "bruce_client")
PLURAL = (
    r"((?:[a-z-]+ )?(?:messages|segments|files|topics|times|records|frames|datagrams|partitions|sockets"
    r"|connections|places|spools|brokers|others))\b"
)
ALWAYS_MANY = {
    ("cli/config/config.py", "len(quotas) topics"): "more than the limit",
    ("cli/daemon/daemon.py", "%d messages"): "at a start after a kill: a line with several figures",
    ("dispatch/embedded.py", "brokers brokers"): "chosen by a programmer",
    ("spool/log/intake_totals.py", "%s counts messages"): "a path, and its verb",
    ("spool/marks/outcomes.py", "path speaks of messages"): "a path, and its verb",
    ("status/health.py", "verb messages"): "a verb",
    ("bruce_client/sockets.py", "self._path has messages"): "a path, and its verb",
}
"""By file and words: what is no number, or never one, and why."""


def bare_plurals(source: str) -> Iterator[tuple[int, str]]:
    """Line and words of each value in front of a plural in a string; constants are never one."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for value, text in zip(node.values, node.values[1:], strict=False):
                if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant):
                    name = ast.unparse(value.value)
                    found = re.match(" " + PLURAL, str(text.value))
                    if found and not name.isupper():
                        yield node.lineno, f"{name} {found[1]}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            for found in re.finditer("%[ds,]+ " + PLURAL, node.value):
                yield node.lineno, found[0]


def test_no_number_is_bare_before_a_plural() -> None:
    """No sentence says "1 messages": `counted` and its like write each number of things."""
    found = [
        f"{path}:{line}: {words}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, words in bare_plurals(path.read_text())
        if (str(path.relative_to(ROOT)), words) not in ALWAYS_MANY
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('log.info("it has %d messages", n)', ["%d messages"]),
        ('say(f"{n:,} new "\n    f"files of {path}")', ["n new files"]),
        ('say(f"{MOST} topics", f"{counted(n, \'time\')} in all")', []),
        ('"""Of %d messages."""', []),
    ],
)
def test_a_plural_is_found(source: str, words: list[str]) -> None:
    """In a format and in an f-string, also over lines; not in a docstring, nor behind a constant."""
    assert [one for _, one in bare_plurals(source)] == words


def test_one_is_one() -> None:
    """One has no plural; thousands have commas."""
    assert [waiting(n) for n in (1, 2)] == ["1 message waits", "2 messages wait"]
    assert [agreeing(n, "file") for n in (1, 2)] == ["1 file is", "2 files are"]
    assert [agreeing(n, "file", "was", "were") for n in (0, 1)] == ["0 files were", "1 file was"]
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
