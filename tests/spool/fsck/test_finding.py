"""A finding: where, how bad, of which kind; and nothing that a help text would have to load."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from spool.format.damage import ranges
from spool.fsck.finding import Finding, Kind, Severity, damage
from tests.daemon import ROOT

PATH = Path("/spool/segments/1.seg")
FOUND = damage(PATH, 64, Kind.FRAME, "bytes hold no good frame")


def test_damage_is_damage() -> None:
    """The short form gives the worse severity, and nothing that is gone unless it is named."""
    assert Finding(PATH, 64, Severity.DAMAGE, Kind.FRAME, "bytes hold no good frame") == FOUND
    assert FOUND.gone is None
    gone = ranges((0, 3))
    assert damage(PATH, 64, Kind.FRAME, "x", gone).gone is gone


def test_two_looks_are_compared_by_what_they_say() -> None:
    """The numbers of lost messages, an array, take no part; each other field does."""
    assert replace(FOUND, gone=ranges((0, 3))) == FOUND
    others = {"path": Path("/x"), "offset": 65, "severity": Severity.NOTE, "kind": Kind.TORN, "sentence": "x"}
    assert all(replace(FOUND, **{name: value}) != FOUND for name, value in others.items())
    assert len({FOUND, replace(FOUND, gone=ranges((0, 3)))}) == 1


def test_a_finding_stays_as_it_was_found() -> None:
    """Nothing that goes over the findings of a check changes one."""
    with pytest.raises(FrozenInstanceError):
        FOUND.severity = Severity.NOTE  # type: ignore[misc]


@pytest.mark.parametrize("values", [Kind, Severity])
def test_programs_find_the_words_in_json(values: type[Kind | Severity]) -> None:
    """Each value in `brucectl inspect verify --json` is the name in the code, in small letters."""
    assert {one.name: str(one) for one in values} == {one.name: one.name.lower() for one in values}


def test_help_texts_load_no_numpy() -> None:
    """The kinds can be named without the arrays that a check needs."""
    code = "import sys; from spool.fsck.finding import Kind; print(len(Kind), 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == f"{len(Kind)} False\n"
