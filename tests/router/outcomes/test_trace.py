"""Which messages a trace means, by compiled loops; and what may be asked for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dispatch.pool import Pool
from router.outcomes.trace import Trace, of_topics, with_key
from router.outcomes.trace_request import TraceRequest
from spool.format.batch import Topics
from tests.dispatch.batches import Message, build_batch, name_topics

keys = st.binary(max_size=4)


@given(st.lists(st.tuples(st.integers(0, 3), keys), max_size=30), st.sets(st.integers(0, 3)), keys)
def test_which_are_meant(rows: list[tuple[int, bytes]], topics: set[int], key: bytes) -> None:
    """Messages of the topics, none meaning any, whose key is exactly this one."""
    batch = build_batch(
        name_topics(b"a", b"b", b"c", b"d"),
        [Message(number, topic, b"value", one) for number, (topic, one) in enumerate(rows)],
    )
    found = np.zeros(len(rows), np.bool_)
    count = of_topics(batch.topic, np.array(sorted(topics), np.int64), found)
    meant = [not topics or topic in topics for topic, _ in rows]
    assert (found.tolist(), count) == (meant, sum(meant))
    count = with_key(batch.data, batch.key_at, batch.key_bytes, np.frombuffer(key, np.uint8), found)
    meant = [one and mine == key for one, (_, mine) in zip(meant, rows, strict=True)]
    assert (found.tolist(), count) == (meant, sum(meant))


def test_what_is_done_with_is_not_received_again(tmp_path: Path) -> None:
    """Messages in flight or resolved that a reader comes by make no event; others make one."""
    topics = name_topics(b"t")
    ask = TraceRequest((b"t",), None, time.monotonic_ns() + 10**10, 10_000, payload=False)
    found = Trace(ask, tmp_path / "events", topics, cast(Pool, None))
    batch = build_batch(topics, [Message(number, 0, b"v") for number in range(3)])
    for _ in range(2):
        found.note_read(batch, np.array([False, True, False]))
    found.leave()
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [(event["event"], event.get("sequence")) for event in events] == [("began", None), ("received", 1)]


def test_a_name_that_was_forgotten_is_followed_all_the_same(tmp_path: Path) -> None:
    """Its number may be another's meanwhile, of which there is no event."""
    topics = Topics(10)
    ask = TraceRequest((b"t",), None, time.monotonic_ns() + 10**10, 10_000, payload=False)
    found = Trace(ask, tmp_path / "events", topics, cast(Pool, None))
    topics.forget([number := topics.number(b"t")])
    assert topics.number(b"other") == number
    wanted = np.ones(1, np.bool_)
    found.note_read(build_batch(topics, [Message(1, number, b"v")]), wanted)
    found.note_read(build_batch(topics, [Message(2, topics.number(b"t"), b"v")]), wanted)
    found.leave()
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [event.get("sequence") for event in events] == [None, 2]
