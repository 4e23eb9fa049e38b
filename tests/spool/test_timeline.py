"""Counting frames over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spool.files import Span, list_files
from spool.frames import read_frames
from spool.timeline import TooManyIntervals, timeline
from spool.wire import encode
from tests.spool.rig import Rig

SECOND = 10**9
START = 1_800_000_000 * SECOND


def quiet(sentence: str) -> None:
    """Nothing may be damaged here."""
    raise AssertionError(sentence)


def fill(rig: Rig, seconds: list[int]) -> None:
    """A frame at each of these seconds, with as many messages as its place in the list, from 1 on."""
    for count, second in enumerate(seconds, 1):
        burst, received_ns = [encode(b"t", b"v")] * count, START + second * SECOND
        rig.writer.append(burst, refused={1: (2, b"short")}, received_ns=received_ns)
        rig.step()


def test_every_second(rig: Rig) -> None:
    """Of each second what its frames hold, empty ones included; the clock may have been set back."""
    fill(rig, [3, 3, 7, 5])
    found = timeline(list_files(rig.layout), Span(), 40, quiet)
    assert found.step_s == 1
    assert ((found.start_ns - START) // SECOND).tolist() == [3, 4, 5, 6, 7]
    assert found.messages.tolist() == [3, 0, 4, 0, 3]
    assert found.discarded.tolist() == [4, 0, 2, 0, 2]
    bodies = [one[1]["body_bytes"] for path in list_files(rig.layout) for one in read_frames(path)]  # type: ignore[union-attr,index]
    assert found.bytes.sum() == np.concatenate(bodies).sum()


def test_steps(rig: Rig) -> None:
    """The shortest step that keeps to the limit, or the one that was asked for; at multiples of it."""
    fill(rig, [0, 61, 119, 600])
    found = timeline(list_files(rig.layout), Span(), 11, quiet)
    assert found.step_s == 60
    assert found.messages.tolist() == [1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 4]
    assert timeline(list_files(rig.layout), Span(), 3, quiet, 300).messages.tolist() == [6, 0, 4]


def test_a_step_that_is_too_fine(rig: Rig) -> None:
    """A clock that jumped by ten years is told in weeks; by seconds it is refused, and they are counted."""
    years = 10 * 365 * 86400
    fill(rig, [0, years])
    files = list_files(rig.layout)
    with pytest.raises(TooManyIntervals) as raised:
        timeline(files, Span(), 100_000, quiet, 1)
    assert raised.value.count == years + 1
    assert timeline(files, Span(), 100_000, quiet).messages.sum() == 3


def test_a_part(rig: Rig) -> None:
    """By time and by sequence; nothing is no error."""
    fill(rig, [0, 1, 2, 3])
    files = list_files(rig.layout)
    by_time = Span(from_ns=START + SECOND, to_ns=START + 3 * SECOND)
    assert timeline(files, by_time, 40, quiet).messages.tolist() == [2, 3]
    assert timeline(files, Span(first=1, end=3), 40, quiet).messages.tolist() == [2]
    assert not len(timeline(files, Span(from_ns=START + 9 * SECOND), 40, quiet).start_ns)


def test_damage_is_told(rig: Rig, tmp_path: Path) -> None:
    """What cannot be read is named, and all else is counted."""
    fill(rig, [0, 1, 2])
    (path,) = list_files(rig.layout)
    (offsets, _), *_ = [one for one in read_frames(path) if isinstance(one, tuple)]
    with path.open("r+b") as file:
        file.seek(int(offsets[1]) + 70)
        file.write(b"rot")
    letter, told = tmp_path / "letter", list[str]()
    letter.write_text("dear reader")
    found = timeline([letter, path], Span(), 40, told.append)
    assert found.messages.tolist() == [1, 0, 3]
    assert told[0].startswith(f"{letter} is no segment")
    assert told[1] == f"{path}: 2 messages cannot be read at byte {offsets[1]}"
