"""Looking at damage: every command that looks says what it finds, and ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli import exits
from tests.cli.program import run
from tests.gallery import kinds
from tests.gallery.good import FIRST_UNDELIVERED, Good
from tests.gallery.kinds import KINDS, Spoil
from tests.gallery.trial import damaged, state_of

LOOKS = (
    ("status",),
    ("status", "--json"),
    ("discards",),
    ("inspect", "segments"),
    ("inspect", "frames"),
    ("inspect", "records", "--json"),
    ("inspect", "records", "--from", "20", "--to", "90", "--topic", "t"),
    ("inspect", "show", "3"),
    ("inspect", "show", str(FIRST_UNDELIVERED)),
    ("inspect", "find", "v"),
    ("inspect", "timeline", "--json"),
    ("inspect", "export"),
    ("inspect", "verify", "--json"),
    ("inspect", "repair"),
)

EVERY = (exits.FINE, exits.FOUND, exits.UNREACHABLE)
CODES = {kinds.directory_for_segment: (*EVERY, exits.USAGE)}
"""What the filesystem refuses to read is named, and is bad usage, as with any file."""


@pytest.mark.parametrize("spoil", KINDS, ids=lambda spoil: spoil.__name__)
def test_every_look_at_damage_ends_in_a_documented_code(good: Good, home: Path, spoil: Spoil) -> None:
    """No exception comes through, the code says something of the spool, and nothing is written."""
    layout, _ = damaged(good, spoil, home)
    before = state_of(layout.directory)
    for arguments in LOOKS:
        done = run(*arguments, "--spool", layout.directory)
        assert done.returncode in CODES.get(spoil, EVERY), (arguments, done)
        found_nothing = "find" in arguments  # as grep, it says nothing of that
        assert done.stdout or done.stderr or done.returncode == exits.FINE or found_nothing, (arguments, done)
    assert state_of(layout.directory) == before
