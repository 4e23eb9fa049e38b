"""The proof of the witness: its faults, its judge, which sees each wrong word of an audit, its short form."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spool.format.segment_format import BLOCK
from tools.kafka_cluster import KafkaMissing, fetch_jars
from tools.storms.evidence import Evidence
from tools.witnesses.faults import ALTERATIONS, ID, Contents, Fault, Faults, Record
from tools.witnesses.judgement import Judge, Truth, records_of, runs_of, truth_of

WITNESS = Path(__file__).resolve().parents[2] / "tools/witness"
SPOOL = uuid.UUID(int=5).bytes
STORED = 2 * BLOCK + 100
DISCARDED = np.array([17, 18])
TOPICS = ("a", "b", "c")


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.real_kafka
@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_the_short_form(tmp_path: Path, mode: str) -> None:
    """On real brokers: the witness finds the faults of a mirror through kills, and no others."""
    try:
        fetch_jars()
    except KafkaMissing as error:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"no real Kafka: {error}")
    command = [sys.executable, str(WITNESS), "--short", "--mode", mode, "--dir", str(tmp_path / "witness")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is missing" in done.stdout


def stamp(sequence: int) -> bytes:
    """The id of a message."""
    return SPOOL + sequence.to_bytes(8, "big")


def test_faults_are_those_of_the_seed() -> None:
    """The same message has the same fault each time; each kind of fault is there; alterations alter."""
    faults, again = (Faults("7", TOPICS) for _ in range(2))
    found = [faults.of(stamp(one)) for one in range(40 * BLOCK)]
    assert found == [again.of(stamp(one)) for one in range(40 * BLOCK)]
    assert set(found) == {None, *Fault}
    for headers in ([], [("more", b"x")]):
        record = Record("c", None, b"value", [(ID, stamp(3)), *headers], 1000)
        altered = [faults.apply(record, fault) for fault in ALTERATIONS]
        assert all(one != record and one.stamp == record.stamp for one in altered)
        # A second alteration on the way to the next tier takes none back.
        assert all(faults.apply(one, how) != record for one in altered for how in ALTERATIONS)


def tiers() -> tuple[Contents, Contents]:
    """Two, the second of which lacks more."""
    east, west = Contents(), Contents()
    for one in np.setdiff1d(np.arange(STORED), [*DISCARDED, 40, 41]).tolist():
        east.copies[stamp(one)] = 1
        west.copies[stamp(one)] = 1
    east.copies[stamp(99)] = 2
    for one in (500, 501, BLOCK + 5):
        del west.copies[stamp(one)]
    west.altered[stamp(2 * BLOCK + 7)] = Fault.TIME
    west.altered[stamp(BLOCK + 9)] = Fault.KEY
    return east, west


def test_the_truth() -> None:
    """Discarded messages are not missing; altered ones in a block with losses are hidden."""
    truth = truth_of(SPOOL.hex(), STORED, DISCARDED, tiers()[1])
    assert truth.judged == STORED - len(DISCARDED)
    assert truth.missing.tolist() == [40, 41, 500, 501, BLOCK + 5]
    assert (truth.altered.tolist(), truth.hidden) == ([2 * BLOCK + 7], 1)
    assert truth.altered_blocks == [[2 * BLOCK, 3 * BLOCK - 1]]
    assert runs_of(truth.missing) == [[40, 41], [500, 501], [BLOCK + 5, BLOCK + 5]]


def row_of(truth: Truth) -> dict[str, Any]:
    """The right words of an audit."""
    return {
        "spool": SPOOL.hex(),
        "host": "h",
        "judged": truth.judged,
        "missing": len(truth.missing),
        "late": 0,
        "duplicated": len(truth.duplicated),
        "missing_runs": runs_of(truth.missing),
        "duplicated_runs": runs_of(truth.duplicated),
        "altered_blocks": truth.altered_blocks,
        "uncompared_blocks": [],
        "altered": truth.altered.tolist(),
        "unread_blocks": [],
    }


def audit() -> tuple[dict[str, Any], dict[tuple[str, str], Truth], dict[str, int]]:
    """A right one, and what is true."""
    contents = dict(zip(("east", "west"), tiers(), strict=True))
    truths = {
        (tier, SPOOL.hex()): truth_of(SPOOL.hex(), STORED, DISCARDED, contents[tier]) for tier in contents
    }
    records = {tier: records_of(contents[tier]) for tier in contents}
    said = [
        {"tier": tier, "records": records[tier], "skipped": 0, "spools": [row_of(truths[tier, SPOOL.hex()])]}
        for tier in contents
    ]
    gaps = [("spool", "east", [[40, 41]]), ("east", "west", [[500, 501], [BLOCK + 5, BLOCK + 5]])]
    between = [
        {
            "spool": SPOOL.hex(),
            "from": before,
            "to": behind,
            "missing": sum(last - first + 1 for first, last in runs),
            "runs": runs,
        }
        for before, behind, runs in gaps
    ]
    return {"sound": False, "exit": 1, "tiers": said, "between": between}, truths, records


Spoil = Callable[[dict[str, Any]], object]
WRONG: dict[str, Spoil] = {
    "sound": lambda found: found.update(sound=True),
    "exit": lambda found: found.update(exit=0),
    "a record twice": lambda found: found["tiers"][0].update(records=1),
    "skipped": lambda found: found["tiers"][1].update(skipped=1),
    "a spool less": lambda found: found["tiers"][1]["spools"].clear(),
    "judged": lambda found: found["tiers"][1]["spools"][0].update(judged=7),
    "late": lambda found: found["tiers"][1]["spools"][0].update(late=7),
    "missing": lambda found: found["tiers"][1]["spools"][0]["missing_runs"].pop(),
    "duplicated": lambda found: found["tiers"][0]["spools"][0]["duplicated_runs"].append([3, 3]),
    "block": lambda found: found["tiers"][1]["spools"][0]["altered_blocks"].pop(),
    "uncompared": lambda found: found["tiers"][1]["spools"][0]["uncompared_blocks"].append([0, 4095]),
    "altered": lambda found: found["tiers"][1]["spools"][0]["altered"].append(1),
    "not read again": lambda found: found["tiers"][1]["spools"][0].update(
        altered=[], unread_blocks=[[0, BLOCK - 1]]
    ),
    "between": lambda found: found["between"][1].update({"from": "spool"}),
}


@pytest.mark.parametrize("wrong", ["", *WRONG])
def test_the_judge(tmp_path: Path, wrong: str) -> None:
    """It accepts the right audit, and complains of each that is wrong in one place."""
    right, truths, records = audit()
    found = copy.deepcopy(right)
    if wrong:
        WRONG[wrong](found)
    evidence = Evidence(tmp_path / "evidence", heading={})
    Judge(evidence, truths, {SPOOL.hex(): "host"}).judge(found, records, [SPOOL.hex()])
    assert bool(evidence.violations) == bool(wrong)


def test_blocks_are_enough_of_a_spool_whose_segments_left(tmp_path: Path) -> None:
    """Single messages cannot be named then."""
    found, truths, records = audit()
    for tier in found["tiers"]:
        row = tier["spools"][0]
        row.update(altered=[], unread_blocks=row["altered_blocks"])
    evidence = Evidence(tmp_path / "evidence", heading={})
    Judge(evidence, truths, {SPOOL.hex(): "host"}).judge(found, records, [])
    assert evidence.violations == []
