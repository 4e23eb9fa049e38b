"""Looking at damage: every command that looks says what it finds, and ends."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from cli.terminal import errors
from spool.layout import Layout
from spool.storage import parallel
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

EVERY = (errors.FINE, errors.FOUND, errors.UNREACHABLE)
CODES = {kinds.directory_for_segment: (*EVERY, errors.USAGE)}
"""A file that the filesystem refuses to read is named, and is bad usage, as any such file is."""


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize("spoil", KINDS, ids=lambda spoil: spoil.__name__)
def test_every_look_at_damage_ends_in_a_documented_code(good: Good, home: Path, spoil: Spoil) -> None:
    """No exception comes through, the code says something of the spool, and nothing is written."""
    layout, _ = damaged(good, spoil, home)
    before = state_of(layout.directory)
    for arguments in LOOKS:
        done = run(*arguments, "--spool", layout.directory)
        assert done.returncode in CODES.get(spoil, EVERY), (arguments, done)
        found_nothing = "find" in arguments  # as grep, it says nothing of that
        assert done.stdout or done.stderr or done.returncode == errors.FINE or found_nothing, (
            arguments,
            done,
        )
    assert state_of(layout.directory) == before


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize("spoil", KINDS, ids=lambda spoil: spoil.__name__)
def test_on_one_processor_and_on_many_the_same_is_found(good: Good, home: Path, spoil: Spoil) -> None:
    """`verify` of a spool and of its files, and `find`: the same words in the same order, the same code."""
    layout, _ = damaged(good, spoil, home)
    files = sorted(path for path in layout.segments.glob("*.s*") if path.is_file())
    before = state_of(layout.directory)
    with mock.patch.object(parallel, "processors", return_value=1):
        alone = look(layout, files)
    with mock.patch.object(parallel, "processors", return_value=4):
        assert look(layout, files) == alone
    assert state_of(layout.directory) == before


def look(layout: Layout, files: list[Path]) -> list[object]:
    """A command's report on a spool, without the time at which it was made."""
    found: list[object] = []
    for arguments in (["--spool", layout.directory], files):
        done = run("inspect", "verify", "--json", "--hashes", *arguments)
        report = json.loads(done.stdout) if done.stdout else {}
        found += [done.returncode, {**report, "made": None}]
        done = run("inspect", "find", "v", "--json", *arguments)
        found += [done.returncode, done.stdout, done.stderr]
    return found
