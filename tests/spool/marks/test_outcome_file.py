"""Outcome files: a file is read as it was written; damaged or foreign files count for nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from spool.errors import BadSpool, UnknownVersion
from spool.format.wire import DEAD_LETTERED, Reason
from spool.marks.outcome_file import (
    MOST,
    decode_outcomes,
    encode_outcomes,
    list_outcomes,
    read_outcomes,
    write_outcomes,
)
from spool.native.digest import digest

SPOOL = bytes(range(16))
GOLDEN = Path(__file__).parents[2] / "golden/outcomes-v1.out"

OUTCOMES = st.integers(0, 60).flatmap(
    lambda count: st.tuples(arrays.arrays(np.int64, count), arrays.arrays(np.int32, count))
)


@given(st.binary(min_size=16, max_size=16), OUTCOMES)
def test_what_is_written_is_read(spool: bytes, outcomes: tuple[np.ndarray, np.ndarray]) -> None:
    """Every sequence number comes back with its reason, in ascending order."""
    sequences, reasons = outcomes
    found = decode_outcomes(encode_outcomes(spool, sequences, reasons), "it")
    order = np.argsort(sequences, kind="stable")
    assert found.spool == spool
    assert found.sequences.tolist() == sequences[order].tolist()
    assert found.reasons.tolist() == reasons[order].tolist()
    assert (found.sequences.dtype, found.reasons.dtype) == (np.int64, np.int32)


@given(OUTCOMES, st.data())
def test_damage_says_nothing(outcomes: tuple[np.ndarray, np.ndarray], chance: st.DataObject) -> None:
    """A wrong byte, or a missing end, is refused: never another outcome."""
    data = bytearray(encode_outcomes(SPOOL, *outcomes))
    if chance.draw(st.booleans()):
        del data[chance.draw(st.integers(0, len(data) - 1)) :]
    else:
        data[chance.draw(st.integers(0, len(data) - 1))] ^= chance.draw(st.integers(1, 255))
    with pytest.raises(BadSpool, match=r"it (is|has) "):
        decode_outcomes(bytes(data), "it")


def test_what_another_release_or_program_wrote_is_told() -> None:
    """A newer version and another program's file have a sentence each; an excessive count is not believed."""
    data = bytearray(encode_outcomes(SPOOL, np.zeros(1, np.int64), np.zeros(1, np.int32)))
    with pytest.raises(BadSpool, match="is no outcome file"):
        decode_outcomes(b"bdis" * 20, "it")
    data[32:40] = (MOST + 1).to_bytes(8, "little")
    with pytest.raises(BadSpool, match="is damaged"):
        decode_outcomes(bytes(data[:-8]) + digest(bytes(data[:-8])).to_bytes(8, "little"), "it")
    data[8] = 2
    with pytest.raises(UnknownVersion, match="version 2"):
        decode_outcomes(bytes(data), "it")


def test_golden() -> None:
    """A golden file reads the same as it was written."""
    found = read_outcomes(GOLDEN)
    assert found.spool == SPOOL
    assert found.sequences.tolist() == [0, 1, 5, 1 << 32, (1 << 32) + 70_000]
    assert found.reasons.tolist() == [0, 0, Reason.TOO_LARGE, DEAD_LETTERED + Reason.UNKNOWN_TOPIC, 0]


def test_two_attempts_write_two_files(tmp_path: Path) -> None:
    """A task that is tried again overwrites nothing; half-written files are not listed."""
    both = [write_outcomes(tmp_path, "task-1", SPOOL, np.arange(n), np.zeros(n, np.int32)) for n in (3, 4)]
    (tmp_path / "task-2.out.tmp").write_bytes(b"half")
    assert list_outcomes(tmp_path) == sorted(both)
    assert sorted(len(read_outcomes(path).sequences) for path in both) == [3, 4]
    assert list_outcomes(tmp_path / "none") == []


def test_a_directory_that_is_gone_fails_the_task(tmp_path: Path) -> None:
    """A task that writes after its lease was withdrawn gets an error, and a name may not lead elsewhere."""
    with pytest.raises(FileNotFoundError):
        write_outcomes(tmp_path / "none", "task", SPOOL, np.arange(1), np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="no name"):
        write_outcomes(tmp_path, "../task", SPOOL, np.arange(1), np.zeros(1, np.int32))


def test_it_is_compact(tmp_path: Path) -> None:
    """A hundred thousand messages of one partition in ten take less than two bytes each."""
    chosen = np.flatnonzero(np.random.default_rng(1).integers(0, 10, 1_000_000) == 0)
    path = write_outcomes(tmp_path, "task", SPOOL, chosen, np.zeros(len(chosen), np.int32))
    assert path.stat().st_size < 2 * len(chosen)
