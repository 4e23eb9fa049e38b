"""The report of a witness: where messages went missing, in numbers and in sentences."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from pyroaring import BitMap64

from pipeline.witness.document import STALE_S
from pipeline.witness.expected import Expected, SpoolSide
from pipeline.witness.judge import Verdict
from pipeline.witness.report import Report, Row, gaps, shown
from pipeline.witness.reread import Altered
from spool.format.segment_format import SUM

NOTHING = np.empty(0, np.int64)
EMPTY = Expected(
    BitMap64(),
    BitMap64(),
    BitMap64(),
    NOTHING,
    np.empty(0, SUM),
    np.empty(0, np.bool_),
    np.empty(0, np.bool_),
)


def row(tier: str, missing: list[int], *, spool: str = "aa", **more: object) -> Row:
    """A verdict."""
    found: dict[str, object] = {
        "judged": 100,
        "missing": BitMap64(missing),
        "late": 0,
        "duplicated": BitMap64(),
        "unstored": BitMap64(),
        "altered": NOTHING,
        "uncompared": NOTHING,
        "settled": NOTHING,
    }
    side = SpoolSide(spool, "host1", "/spool", frozenset(), True, EMPTY, 100)
    return Row(tier, side, Verdict(**{**found, **more}))  # type: ignore[arg-type]


def told(rows: list[Row], tiers: tuple[str, ...] = ("east", "west", "lake")) -> list[tuple[object, ...]]:
    """The gaps."""
    return [(gap.spool, gap.before, gap.behind, list(gap.missing)) for gap in gaps(tiers, rows)]


def test_a_message_is_missing_between_two_tiers() -> None:
    """In the last one that had it, and the first that lacks it; also when it comes back behind that."""
    rows = [row("east", [1]), row("west", [1, 2]), row("lake", [2, 3])]
    assert told(rows) == [
        ("aa", "spool", "east", [1]),
        ("aa", "east", "west", [2]),
        ("aa", "west", "lake", [3]),
    ]
    assert told([row("east", []), row("west", [])]) == []


def test_spools_are_apart() -> None:
    """A message that one lacks is nothing to the other."""
    rows = [row("east", [1]), row("east", [], spool="bb"), row("west", [1]), row("west", [1], spool="bb")]
    assert told(rows, ("east", "west")) == [("aa", "spool", "east", [1]), ("bb", "east", "west", [1])]


@pytest.mark.parametrize(
    ("rows", "sound", "sentence"),
    [
        ([], True, "the witness has not seen these spools yet"),
        ([row("east", [])], True, "100 messages judged: complete."),
        ([row("east", [1, 2])], False, "100 messages judged: 2 missing."),
        (
            [row("east", [1]), row("west", [], altered=np.array([3]))],
            False,
            "200 messages judged: 1 missing, 1 block altered.",
        ),
        ([row("east", [], duplicated=BitMap64([7]))], True, "100 messages judged: complete."),
        ([row("east", [], late=3)], True, "100 messages judged: 3 late."),
    ],
)
def test_the_outcome(rows: list[Row], *, sound: bool, sentence: str) -> None:
    """Duplicates and late messages are no fault."""
    report = Report([("east", 5, 0)], rows)
    assert (report.sound, report.sentence()) == (sound, sentence)


def test_sentences_name_messages() -> None:
    """The first runs of them, and blocks where messages are not known."""
    rows = [
        row("east", [1, 2, 3, 9], duplicated=BitMap64([7])),
        row("west", [], altered=np.array([1])),
    ]
    found = list(gaps(("east", "west"), rows))
    report = Report([("east", 5, 2), ("west", 5, 0)], rows, found, looked_s=time.time())
    text = list(report.with_altered([None, Altered([5000], [])]).lines())
    assert text == [
        "east: Kafka dropped 2 offsets before the witness had read them; messages may be missing for that",
        "aa: 4 messages missing between spool and east: 1 to 3, 9",
        "aa in east: more than once: 7",
        "aa in west: altered: 5000",
        "200 messages judged: 4 missing, 1 block altered.",
    ]
    assert "altered: some among 4096 to 8191" in "".join(report.lines())
    assert shown(BitMap64(range(0, 40, 2))) == "0, 2, 4, 6, 8, and more"


def test_the_document_has_all_of_it() -> None:
    """Runs of messages, blocks as their sequences, and where they went missing."""
    rows = [row("east", [1, 2], altered=np.array([1]))]
    found = Report([("east", 5, 2)], rows, list(gaps(("east",), rows))).as_json()
    (tier,) = found["tiers"]  # type: ignore[misc]
    (spool,) = tier["spools"]
    assert (found["version"], found["sound"], tier["records"], tier["skipped"]) == (1, False, 5, 2)
    assert (spool["missing"], spool["missing_runs"]) == (2, [(1, 2)])
    assert (spool["altered_blocks"], spool["altered"]) == ([(4096, 8191)], [])
    assert spool["unread_blocks"] == [(4096, 8191)]
    assert found["between"] == [
        {"spool": "aa", "from": "spool", "to": "east", "missing": 2, "runs": [(1, 2)]}
    ]


def test_what_is_left_out_is_said() -> None:
    """A spool that is not watched, and the time since the witness stopped: "complete" is not of these."""
    now = time.time()
    told = Report([("east", 100, 0)], [row("east", [])], looked_s=now)
    assert (told.tells_all, list(told.lines())) == (True, ["100 messages judged: complete."])
    other = replace(told, unwatched=["bb"])
    assert not other.tells_all
    assert "not watched: bb: name them to brucectl witness run" in list(other.lines())
    other = replace(told, unread=["a book is gone"])
    assert (other.tells_all, "a book is gone" in list(other.lines())) == (False, True)
    for looked_s, since in (
        (now - STALE_S - 1, " since 20"),
        (None, ", and judges"),
        (now + 2 * STALE_S, " since 20"),
    ):
        stopped = replace(told, looked_s=looked_s)
        assert not stopped.tells_all
        assert f"the witness has not looked{since}" in next(stopped.lines())
        assert stopped.as_json()["is_current"] is False
    assert not replace(told, rows=[]).tells_all
