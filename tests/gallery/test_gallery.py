"""The gallery of damage: no crash, no hang, no good message lost, no bad one served, each one counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from spool.errors import UnknownVersion
from spool.fsck.repair import Action, Mode, Step, apply, plan, refused
from spool.index.identity import read_identity
from spool.layout import Layout
from tests.gallery import kinds
from tests.gallery.good import FIRST_UNDELIVERED, Good
from tests.gallery.kinds import KINDS, Copy, Spoil
from tests.gallery.trial import (
    KILLED_IN,
    NEW,
    NEXT,
    Started,
    booted,
    damaged,
    damages,
    start,
    state_of,
)

REFUSED = {kinds.newer_version}
"""A newer release's files stay untouched."""
ANEW = {kinds.removed_all}
"""Nothing is left of the log: a new one begins, under another uuid."""
UNCOUNTED = {kinds.ledger_garbage: 7, kinds.ledger_cut: 7}
"""The ledger's counts are known from nowhere else."""
SILENT = {
    *(kinds.footer_gone, kinds.index_gone, kinds.marks_gone),
    *(kinds.identity_gone, kinds.spare_flipped, kinds.leftovers),
}
"""Kinds that `verify` calls no damage: nothing is lost by them, or they may be so."""


@pytest.fixture
def copied(good: Good, home: Path, spoil: Spoil) -> tuple[Copy, frozenset[int]]:
    """A damaged copy, and what was destroyed in it."""
    layout, hit = damaged(good, spoil, home)
    return Copy(layout, good), hit


def over(spoils: list[Spoil]) -> pytest.MarkDecorator:
    """The test for each of these kinds."""
    return pytest.mark.parametrize("spoil", spoils, ids=[spoil.__name__ for spoil in spoils])


def judge(good: Good, spoil: Spoil, hit: frozenset[int], found: Started) -> None:
    """The conditions that hold after a start, whatever was damaged."""
    served = {sequence: data for sequence, data in found.served.items() if sequence != found.new}
    assert found.twice == []
    assert found.served[found.new] == NEW
    assert found.synced > found.new
    if spoil in ANEW:
        assert served == {}
        assert found.spool != read_identity(Layout(good.directory / "spool"))
        return
    assert found.spool == read_identity(Layout(good.directory / "spool"))
    assert served == {sequence: good.sent[sequence] for sequence in served}, "a bad message is served"
    assert set(good.sent) - hit <= set(served), "a good message is lost"
    assert found.new not in good.sent, "a number means two messages"
    account, before = found.account, good.account
    assert account.received == before.received + 1 - UNCOUNTED.get(spoil, 0)
    assert account.delivered <= before.delivered, "messages count as delivered that were not"
    assert account.received == account.delivered + account.backlog + sum(account.by_reason().values())
    if account.low_watermark > FIRST_UNDELIVERED:
        # Only if all before it is gone.
        assert set(range(FIRST_UNDELIVERED, account.low_watermark)) <= hit


@over(KINDS)
def test_verify_finds_it(copied: tuple[Copy, frozenset[int]], spoil: Spoil) -> None:
    """Each kind is found, in sentences; nothing is written."""
    layout = copied[0].layout
    before = state_of(layout.directory)
    found = damages(layout)
    assert bool(found) == (spoil not in SILENT)
    assert all(one.sentence and "\n" not in one.sentence for one in found)
    with booted(KILLED_IN):
        if spoil not in REFUSED:
            plan(layout)
    assert state_of(layout.directory) == before


@pytest.mark.sample(one_of=2)
@pytest.mark.parametrize("boot", [KILLED_IN, NEXT], ids=["same boot", "next boot"])
@over(KINDS)
def test_a_start(copied: tuple[Copy, frozenset[int]], spoil: Spoil, boot: int) -> None:
    """In the boot in which the daemon was killed, and in the next."""
    copy, hit = copied
    home = copy.layout.directory.parent
    if spoil in REFUSED:
        before = state_of(copy.layout.directory)
        with pytest.raises(UnknownVersion):
            start(home, boot)
        assert state_of(copy.layout.directory) == before
        return
    judge(copy.good, spoil, hit, start(home, boot))
    # A second start changes nothing that the first one did.
    judge_again = start(home, boot)
    assert judge_again.twice == []


@pytest.mark.sample(one_of=3)
@pytest.mark.parametrize("mode", Mode)
@over([spoil for spoil in KINDS if spoil not in REFUSED])
def test_a_repair(copied: tuple[Copy, frozenset[int]], spoil: Spoil, mode: Mode) -> None:
    """It does what was planned, or in strict mode nothing; done again it does nothing; then a start."""
    copy, hit = copied
    layout = copy.layout
    with booted(KILLED_IN):
        planned, before = plan(layout), state_of(layout.directory)
        assert apply(layout, mode) == planned
        again = plan(layout)
        if mode is Mode.STRICT and refused(planned, mode):
            assert state_of(layout.directory) == before
        else:
            left = {one.action for one in again if one not in refused(again, mode)}
            assert left <= {Action.NONE, Action.CUT}
            check_originals(copy, planned, mode, before)
        if mode is Mode.SKIP_DAMAGED:
            assert {one.path for one in damages(layout)} <= {one.path for one in again}
            assert refused(again, Mode.STRICT) == []
    judge(copy.good, spoil, hit, start(layout.directory.parent, NEXT))


def check_originals(copy: Copy, planned: list[Step], mode: Mode, before: dict[str, str]) -> None:
    """Files that were replaced or set aside are in quarantine, byte for byte."""
    kept = set(state_of(copy.layout.quarantine).values())
    # These get a header, or a footer, before they are copied.
    changed = {one.path for one in planned if one.action is Action.HEADER} | {copy.path(kinds.LIVE)}
    for one in planned:
        moved = one.action in (Action.SET_ASIDE, Action.REWRITE) and one.path not in changed
        if moved and one.path.suffix != ".out" and one not in refused(planned, mode):
            assert before.get(str(one.path)) in kept | {None}
