"""The witness as the doctor sees it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cli.doctor import Level
from cli.doctor.witness import check_witness, look
from status.witness import WitnessView
from tests.status.test_witness import NOW_S, OTHER, SPOOL, spool, tier, view, write

PLACE = Path("/w")


def test_no_witness_is_configured() -> None:
    """The doctor says nothing about one."""
    assert list(look(None)) == []


def test_all_is_there(tmp_path: Path) -> None:
    """One line: how much is judged, and how much is not read yet; with messages that are late, too."""
    write(tmp_path, tier("a", spool(), spool(OTHER)), tier("b", lag=1))
    (found,) = look(tmp_path)
    assert found == (
        "witness",
        Level.OK,
        "the witness has judged 120 messages in 2 tiers: nothing is missing; 1 offset is not read yet",
        "",
    )
    (found,) = check_witness(view(tier("a", spool(late=3))), PLACE)
    assert (found.level, "nothing is missing, 3 late" in found.sentence) == (Level.OK, True)


@pytest.mark.parametrize("counts", [{"missing": 2}, {"altered_blocks": 2}])
def test_a_loss(counts: dict[str, int]) -> None:
    """It is a problem, with the command that names the messages."""
    (found,) = check_witness(view(tier("a", spool(**counts))), PLACE)
    assert found.level is Level.PROBLEM
    assert f"in tier a, of spool {SPOOL} of alpha: 2 " in found.sentence
    assert found.remedy == "see which by brucectl audit --witness"


def test_a_witness_that_is_not_at_work(tmp_path: Path) -> None:
    """No document, an old one, one that cannot be read: a problem each, beside the verdict that it had."""
    (nothing,) = look(tmp_path)
    assert (nothing.level, "has not written anything" in nothing.sentence) == (Level.PROBLEM, True)
    assert "brucectl witness run" in nothing.remedy
    path = write(tmp_path, tier("a", spool(missing=1)), written_s=NOW_S - 10 * 365 * 86_400)
    old, loss = look(tmp_path)
    assert (old.level, "the witness has stopped" in old.sentence) == (Level.PROBLEM, True)
    assert "1 missing" in loss.sentence
    path.write_text("{")
    (broken,) = look(tmp_path)
    assert (broken.level, "it is not JSON" in broken.sentence) == (Level.PROBLEM, True)


def test_a_document_that_this_user_may_not_read(memory: Path) -> None:
    """It is unknown how the witness is, and the remedy says who can ask."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    directory = memory / "witness"
    write(directory).chmod(0o600)
    os.seteuid(65534)
    try:
        (found,) = look(directory)
    finally:
        os.seteuid(0)
    assert (found.level, "Permission denied" in found.sentence) == (Level.UNKNOWN, True)
    assert found.remedy.startswith("ask again as root")
    (found,) = check_witness(WitnessView(problem="it cannot be read", errno=errno.EIO), PLACE)
    assert found.level is Level.PROBLEM


def test_tiers_that_are_not_read(tmp_path: Path) -> None:
    """One that cannot be read is a problem; one that deleted records unread is an advice."""
    write(tmp_path, tier("a", error="no broker can be reached"), tier("b", skipped=7))
    away, skipped = look(tmp_path)
    assert away[1:3] == (Level.PROBLEM, "the witness cannot read tier a: no broker can be reached")
    assert skipped[1:3] == (Level.ADVICE, "tier b deleted 7 offsets before the witness read them")
