"""Fuzzing: whatever bytes come, a parser returns; and a fuzzer that is given a bug finds it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.fuzzers.campaign import MEMORY_MIB, fuzz
from tools.fuzzers.seeds import CORPUS, seeds
from tools.fuzzers.targets import TARGETS

SECONDS = 5
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

edits = st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=6)


@st.composite
def damaged(draw: st.DrawFn, target: str) -> bytes:
    """A seed with some of its bytes overwritten, and perhaps its end missing."""
    data = bytearray(draw(st.sampled_from(seeds(target))))
    for place, patch in draw(edits):
        at = int(place * len(data))
        data[at : at + len(patch)] = patch
    return bytes(data[: draw(st.integers(0, len(data)) | st.just(len(data)))])


@pytest.mark.parametrize("target", TARGETS)
def test_every_input_that_is_kept_is_parsed(target: str) -> None:
    """Golden files, and what campaigns found, by the compiled parsers."""
    kept = seeds(target)
    assert len(kept) > 2
    for data in kept:
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
@relaxed
@given(data=st.data())
def test_damaged_inputs_are_parsed(target: str, data: st.DataObject) -> None:
    """Bytes of a right input overwritten, its end cut off; digests made right where the input says so."""
    TARGETS[target](data.draw(damaged(target)))


@pytest.mark.parametrize("target", TARGETS)
@relaxed
@given(data=st.binary(max_size=2000))
def test_any_bytes_are_parsed(target: str, data: bytes) -> None:
    """Right or not, a parser says so and returns."""
    TARGETS[target](data)


@pytest.mark.long
@pytest.mark.parametrize("form", ["interpreted", "compiled"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_short_campaign_finds_nothing(tmp_path: Path, target: str, form: str) -> None:
    """Seconds of what tools/fuzz does for minutes: no crash, no hang, no memory above the limit."""
    result = fuzz(target, SECONDS, tmp_path, compiled=form == "compiled")
    assert result.findings == [], result.said
    assert result.executions > 20
    assert 0 < result.peak_mib <= MEMORY_MIB


@pytest.mark.long
@pytest.mark.parametrize("bug", ["error", "over_read"])
def test_a_planted_bug_is_found(tmp_path: Path, bug: str) -> None:
    """An exception that is not expected, and a read of one byte behind the input: the input is kept."""
    result = fuzz(f"tests.tools.planted.{bug}", 60, tmp_path, compiled=True)
    assert len(result.findings) == 1, result.said
    assert Path(result.findings[0]).exists()


def test_the_corpus_is_small() -> None:
    """It is there to be read by each run of the tests."""
    sizes = [path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()]
    assert sum(sizes) < 1 << 20
    assert len(sizes) < 1000
