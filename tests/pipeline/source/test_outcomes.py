"""Outcome files count for audits, jobs and the column `delivered` as they will once imported."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from pipeline.source.outcomes import read_outcomes, tell_delivered
from pipeline.source.plan import plan_spool
from pipeline.source.segments import Part
from router.outcome_import import OutcomeImport
from spool.format.wire import DEAD_LETTERED, Reason, encode
from spool.marks.outcome_file import list_outcomes, write_outcomes
from tests.spool.fixture import SpoolFixture

REASONS = (0, 0, 0, int(Reason.TOO_LARGE), DEAD_LETTERED + Reason.UNKNOWN_TOPIC)


def fill(spool: SpoolFixture) -> int:
    """Messages in several segments; how many."""
    end = 0
    for _ in range(9):
        end = spool.append([encode(b"t", b"v" * 60)] * 20) + 20
        spool.step()
    assert len(spool.layout.list_segments()) > 1
    return end


def adopt(spool: SpoolFixture) -> None:
    """The owner takes over what there is."""
    outcome_import = OutcomeImport(spool.layout, spool.identity.spool)
    assert outcome_import.step()
    outcome_import.close()


def known(spool: SpoolFixture) -> tuple[list[int], set[int], set[int]]:
    """Discarded, in the backlog, and delivered, by sequence number."""
    plan = plan_spool(spool.layout)
    said = read_outcomes(plan)
    backlog = {number for run in said.backlog for number in range(*run)}
    parts = zip(tell_delivered(plan).parts, plan.runs, strict=True)
    return said.discarded.tolist(), backlog, {n for part, run in parts for n in delivered(part, run)}


def delivered(part: Part, run: tuple[int, int]) -> list[int]:
    """The column `delivered` of a part."""
    assert part.delivered is not None
    if isinstance(part.delivered, bool):
        return list(range(*run)) if part.delivered else []
    bits = np.unpackbits(np.frombuffer(part.delivered, np.uint8), bitorder="little")
    return (run[0] + np.flatnonzero(bits)).tolist()


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_same_before_and_after_it_is_taken_over(seed: int) -> None:
    """The same for any marks, and for files that repeat an outcome, even with another reason."""
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        spool = SpoolFixture(Path(directory))
        count = fill(spool)
        outcomes = spool.layout.outcomes / "job"
        adopt(spool)
        for _ in range(3):
            outcomes.mkdir(parents=True, exist_ok=True)
            for _ in range(random.integers(1, 4)):
                first = random.integers(count)
                some = first + np.flatnonzero(random.random(count - first) < random.choice([0.02, 0.5, 1.0]))
                reasons = random.choice(REASONS, len(some)).astype(np.int32)
                write_outcomes(outcomes, "task", spool.identity.spool, some, reasons)
            before = known(spool)
            adopt(spool)
            assert list_outcomes(outcomes) == []
            assert known(spool) == before
        assert before[1] | before[2] | set(before[0]) == set(range(count))
        spool.crash()


def test_what_nobody_would_take_over_counts_for_nothing(spool: SpoolFixture) -> None:
    """Damaged, of another uuid, or about messages that were never stored."""
    count = fill(spool)
    adopt(spool)
    outcomes = spool.layout.outcomes / "job"
    outcomes.mkdir(parents=True)
    uuid, none = spool.identity.spool, np.zeros(10, np.int32)
    write_outcomes(outcomes, "foreign", bytes(16), np.arange(10), none)
    write_outcomes(outcomes, "beyond", uuid, count - 5 + np.arange(10), none)
    damaged = write_outcomes(outcomes, "damaged", uuid, np.arange(10), none)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    assert known(spool) == ([], set(range(count)), set())
