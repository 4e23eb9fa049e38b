"""A condition leaves out segments that have nothing for it, and no other."""

from __future__ import annotations

from datetime import UTC, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from pyarrow import dataset

from pipeline.embedded.dataset import SpoolDataset
from pipeline.embedded.pruning import prune
from pipeline.source.plan import plan_spool
from spool.format.wire import encode
from tests.spool.fixture import SpoolFixture

COUNT = 600
SEQUENCE, TOPIC, RECEIVED = map(dataset.field, ("sequence", "topic", "received_at"))


@pytest.fixture
def filled(spool: SpoolFixture) -> SpoolFixture:
    """Segments with topics of their own: message i is of the topic t(i // 100)."""
    for first in range(0, COUNT, 20):
        spool.append([encode(b"t%d" % (i // 100), b"%d" % i + b"v" * 60) for i in range(first, first + 20)])
        spool.step()
    spool.crash()
    return spool


def opened(spool: SpoolFixture, condition: dataset.Expression) -> list[int]:
    """The first sequence numbers of the segments that are left."""
    schema = SpoolDataset([]).schema
    return [part.first_sequence for part in prune(plan_spool(spool.layout), condition, schema).parts]


def test_what_is_left(filled: SpoolFixture) -> None:
    """By sequence, by topic, by time; the last segment has no footer, and stays unless its number says no."""
    firsts = [first for first, _ in filled.layout.list_segments()]
    assert len(firsts) > 5
    assert opened(filled, firsts[1] > SEQUENCE) == firsts[:1]
    assert opened(filled, firsts[-1] <= SEQUENCE) == firsts[-1:]
    of_t0 = [first for first in firsts[:-1] if first < 100]
    assert opened(filled, TOPIC == "t0") == [*of_t0, firsts[-1]]
    assert opened(filled, TOPIC.isin(["t0", "none"])) == [*of_t0, firsts[-1]]
    assert opened(filled, (TOPIC == "t0") & (firsts[1] > SEQUENCE)) == firsts[:1]
    assert opened(filled, TOPIC == "none") == firsts[-1:]
    assert opened(filled, datetime(2100, 1, 1, tzinfo=UTC).replace(tzinfo=None) < RECEIVED) == firsts[-1:]
    assert opened(filled, ~(TOPIC == "none")) == firsts


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(-1, COUNT), st.integers(0, COUNT), st.sampled_from(["t0", "t3", "t5", "none"]), st.booleans()
)
def test_no_row_is_missing(filled: SpoolFixture, low: int, length: int, topic: str, either: bool) -> None:  # noqa: FBT001
    """The rows that meet a condition are those that meet it of all rows."""
    rows = SpoolDataset([str(filled.layout.directory)])
    within = (low <= SEQUENCE) & (low + length > SEQUENCE)
    condition = within | (topic == TOPIC) if either else within & (topic == TOPIC)
    found = rows.scanner(columns=["sequence"], filter=condition).to_table()["sequence"].to_pylist()
    numbers = (low <= i < low + length for i in range(COUNT))
    topics = (f"t{i // 100}" == topic for i in range(COUNT))
    assert found == [
        i
        for i, (number, name) in enumerate(zip(numbers, topics, strict=True))
        if (number or name if either else number and name)
    ]
