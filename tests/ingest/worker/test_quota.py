"""Topics over their quota are refused at intake, counted by topic in the frame; the others are stored."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spool.format.wire import Reason, encode
from spool.log.quotas import OVER, Quotas, row_at
from spool.read.overview import take_totals
from spool.shared.state import QUOTA_ROW, Field, SharedState
from tests.ingest.intake import Intake

NAMES = [b"a", b"ab", b"b", b"l" * 249]
OTHERS = [b"ac", b"abc", b"c", b"l" * 248, b"", b"\xff"]


def set_over(shared: SharedState, names: set[bytes]) -> None:
    """Set the keeper's words as if these topics, of NAMES, were over their quota."""
    for number, name in enumerate(sorted(NAMES)):
        shared.words[row_at(number) + OVER] = name in names
    shared.words[Field.QUOTAS] = len(names)


def with_quotas(directory: Path) -> Intake:
    """An intake whose keeper has set the quotas in the shared state."""
    made = Intake(directory)
    Quotas(made.spool.layout, made.spool.shared, dict.fromkeys(NAMES, 0.5), 1 << 20)
    return made


def topic_of(sample: bytes) -> bytes:
    """The topic in the first bytes of a datagram, as far as they go."""
    at = 14 if sample[5] else 10
    return sample[at + 2 :][: int.from_bytes(sample[at : at + 2], "big")][:240]


def rows_by_topic(intake: Intake) -> Counter[bytes]:
    """Messages refused by quota, by topic as the samples in the frames tell it."""
    found: Counter[bytes] = Counter()
    for frame in intake.frames():
        topics = [topic_of(sample) for reason, _, sample in frame.rows if reason == Reason.OVER_QUOTA]
        assert len(topics) == len(set(topics))
        for reason, count, sample in frame.rows:
            if reason == Reason.OVER_QUOTA:
                found[topic_of(sample)] += count
    return found


messages = st.lists(
    st.tuples(st.sampled_from(NAMES + OTHERS[:4]), st.sampled_from([0, 10, 1500, 5000]), st.booleans()),
    max_size=30,
)


@settings(max_examples=30)
@given(messages, st.sets(st.sampled_from(NAMES)))
def test_exactly_those_are_refused(sent: list[tuple[bytes, int, bool]], over: set[bytes]) -> None:
    """By the whole name, whatever the size and kind of the message; each counted once, the rest in order."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as name:
        intake = with_quotas(Path(name))
        set_over(intake.spool.shared, over)
        datagrams = [
            encode(topic, b"v" * size, partition_key=7 if keyed else None) for topic, size, keyed in sent
        ]
        intake.take([*datagrams, b"short"])
        kept = [d for (topic, *_), d in zip(sent, datagrams, strict=True) if topic not in over]
        assert intake.stored() == kept
        expected = Counter(topic[:240] for topic, *_ in sent if topic in over)
        assert rows_by_topic(intake) == expected
        assert intake.refused().get("over_quota", 0) == expected.total()
        assert intake.refused()["short"] == 1
        intake.spool.keeper.commit()
        assert take_totals(intake.spool.layout, list).received == len(sent) + 1
        intake.close()


def test_a_burst_of_nothing_but_refused_ones_is_a_frame(memory: Path) -> None:
    """The largest burst, each message of it small: its rows find room beside nothing."""
    intake = with_quotas(memory)
    set_over(intake.spool.shared, set(NAMES))
    intake.take([encode(name, b"") for name in NAMES * 2])
    assert intake.stored() == []
    assert intake.refused() == {"over_quota": 8}
    assert sorted(rows_by_topic(intake).values()) == [2, 2, 2, 2]
    intake.close()


def test_a_burst_is_salvaged_under_the_quota_of_that_time(memory: Path) -> None:
    """Received, not stored, and then over its quota: after the crash it is refused, and counted once."""
    intake = with_quotas(memory)
    intake.queue([encode(b"a", b"1"), encode(b"c", b"2"), encode(b"a", b"3")])
    assert intake.receive() == 3
    intake.start()
    Quotas(intake.spool.layout, intake.spool.shared, dict.fromkeys(NAMES, 0.5), 1 << 20)
    set_over(intake.spool.shared, {b"a"})
    assert intake.worker.salvage() == 3
    assert intake.stored() == [encode(b"c", b"2")]
    assert rows_by_topic(intake) == {b"a": 2}
    assert intake.restart() == 0
    assert intake.refused() == {"over_quota": 2}
    intake.close()


@pytest.mark.parametrize("number", [0, 3])
def test_no_quota_is_looked_at_while_nobody_is_over(memory: Path, number: int) -> None:
    """The word that counts them is 0: rows are not read, whatever they hold."""
    intake = with_quotas(memory)
    intake.spool.shared.words[row_at(number) : row_at(number) + 1] = 1
    intake.spool.shared.words[Field.QUOTAS] = 0
    intake.take([encode(NAMES[0], b"v"), encode(NAMES[3], b"v")])
    assert len(intake.stored()) == 2
    assert QUOTA_ROW * 8 >= 128 + 249
    intake.close()
