"""Answers that wait for delivery: the marks say what became of each message."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest

from ingest.kafka import delivered
from ingest.kafka.delivered import LOOK_S, Delivered
from ingest.kafka.errors import Code
from ingest.kafka.produce import NOTHING, Answer, Part
from ingest.kafka.producers import Range
from ingest.kafka.storing import Batching
from spool.format.wire import DEAD_LETTERED, Reason
from spool.layout import Layout
from spool.marks.outcomes import DELIVERED, OPEN, UNTOLD

OK = (0, 0)


class Marks:
    """Outcomes by sequence."""

    def __init__(self, outcomes: Sequence[int]) -> None:
        self.outcomes = np.array(outcomes, np.int64)
        self.transactions, self.looks = 1, 0

    def of(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """As OutcomeReader has it."""
        self.looks += 1
        return self.outcomes[sequences]


def look(tmp_path: Path, outcomes: Sequence[int], patch: pytest.MonkeyPatch) -> tuple[bool, list[int]]:
    """(whether a request is answered whose parts have messages 0 and 1, and 2; the errors of its answer)."""
    layout = Layout(tmp_path)
    layout.delivery.mkdir()
    (layout.delivery / "data.mdb").touch()
    patch.setattr(delivered, "open_outcomes", lambda _layout: Marks(outcomes))
    parts = [
        Batching(Part(b"t", number, NOTHING), Answer(), ranges=[Range(*one)])
        for number, one in enumerate([(0, 2), (2, 1)])
    ]
    storing = SimpleNamespace(parts=parts, look_at=0.0, seen=(0, 0))
    answered = Delivered(layout).look(storing, LOOK_S)  # type: ignore[arg-type]
    return answered, [one.answer.error for one in parts]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([DELIVERED, DELIVERED, DELIVERED], (True, [0, 0])),
        ([DELIVERED, OPEN, DELIVERED], (False, [0, 0])),
        ([UNTOLD, DELIVERED, UNTOLD], (True, [0, 0])),
        ([DELIVERED, Reason.TOO_LARGE, DELIVERED], (True, [Code.MESSAGE_TOO_LARGE, 0])),
        (
            [DELIVERED, DELIVERED, Reason.UNKNOWN_TOPIC | DEAD_LETTERED],
            (True, [0, Code.UNKNOWN_TOPIC_OR_PARTITION]),
        ),
        ([DELIVERED, DELIVERED, Reason.EVICTED], (True, [0, Code.INVALID_RECORD])),
    ],
)
def test_outcomes(
    tmp_path: Path, outcomes: list[int], expected: tuple[bool, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request is answered when each of its messages is resolved; a discard is an error of its part."""
    assert look(tmp_path, outcomes, monkeypatch) == expected


def test_marks_that_do_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is looked up twice in the same marks: many may wait, until Kafka is back."""
    layout, marks = Layout(tmp_path), Marks([OPEN])
    layout.delivery.mkdir()
    (layout.delivery / "data.mdb").touch()
    monkeypatch.setattr(delivered, "open_outcomes", lambda _layout: marks)
    reader = Delivered(layout)
    waiting = [
        SimpleNamespace(
            parts=[Batching(Part(b"t", 0, NOTHING), ranges=[Range(0, 1)])], look_at=0.0, seen=(0, 0)
        )
        for _ in range(3)
    ]
    now = time.monotonic()
    for turn in range(1, 5):
        assert not any(reader.look(one, now + turn) for one in waiting)  # type: ignore[arg-type]
    assert marks.looks == len(waiting)
    marks.outcomes[0], marks.transactions = DELIVERED, 2
    assert all(reader.look(one, now + 5) for one in waiting)  # type: ignore[arg-type]


def test_without_marks(tmp_path: Path) -> None:
    """Before any deliverer has begun, an answer waits; one for nothing that is stored does not."""
    stored, refused = (SimpleNamespace(ranges=ranges) for ranges in ([Range(0, 1)], []))
    delivered = Delivered(Layout(tmp_path))
    assert not delivered.look(SimpleNamespace(parts=[refused, stored], look_at=0.0, seen=(0, 0)), LOOK_S)  # type: ignore[arg-type]
    assert delivered.look(SimpleNamespace(parts=[refused], look_at=0.0), LOOK_S)  # type: ignore[arg-type]
