"""The hash of a message is the same from its bytes, from its columns, and in the independent reader."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.source.content_hash import hash_contents
from pipeline.source.fields import to_schema
from pipeline.witness.tier import hash_rows
from spool.format.frame import FRAME_AT, ROW
from spool.format.message_hash import hash_frames
from spool.format.wire import encode, encode_message
from spool.native.digest import xxh64_function
from spool.native.memory import address_of
from tests.spool import plain
from tests.spool.memory import FIRST, Chain

NAMES = st.sampled_from(["a", "bruce-id", "bruce-replay", "bruce-replay2", "\u00e9", ""])
TEXT = st.none() | st.binary(max_size=20)
TOPICS = st.sampled_from(["t", "orders", "\u00fc"])
TIMES = st.integers(-(1 << 62), 1 << 62) | st.just(0)
OLD = st.builds(
    lambda topic, value, key, at: encode(topic.encode(), value, key=key, timestamp=at),
    TOPICS,
    st.binary(max_size=20),
    st.binary(max_size=20),
    TIMES,
)
LONG = st.builds(
    lambda topic, value, key, at, headers: encode_message(
        topic.encode(), value, key=key, timestamp=at, headers=headers
    ),
    TOPICS,
    TEXT,
    TEXT,
    TIMES,
    st.lists(st.tuples(NAMES, TEXT), max_size=4),
)
OF = to_schema(("topic", "key", "value", "headers"))


def words_of(datagrams: list[bytes]) -> list[tuple[int, int, int]]:
    """(sequence, word, time word) of messages, by the loop that a seal runs."""
    chain = Chain()
    frames = np.zeros((-(-len(datagrams) // 3), ROW), np.int64)
    for at in range(0, len(datagrams), 3):
        chain.append(datagrams[at : at + 3], {1: (1, b"xyz")}, (0, 0))
    frames[:, FRAME_AT] = chain.offsets
    word, found = np.zeros(1, np.int64), np.zeros((3, len(datagrams)), np.int64)
    xxh = xxh64_function(), address_of(word)
    count = hash_frames(address_of(chain.memory), frames, xxh, *found)
    assert count == len(datagrams)
    assert found[0].tolist() == list(range(FIRST, FIRST + count))
    return list(map(tuple, found.T.tolist()))


@settings(max_examples=200)
@given(st.lists(OLD | LONG, min_size=1, max_size=7))
def test_words_are_those_of_the_independent_reader(datagrams: list[bytes]) -> None:
    """Keys and values that are null or empty, headers in order, and none that a replay adds."""
    for (sequence, word, _), data in zip(words_of(datagrams), datagrams, strict=True):
        message = plain.parse_datagram(data)
        assert isinstance(message, plain.Message)
        assert word % (1 << 64) == plain.word(sequence, message)


@given(st.lists(OLD | LONG, min_size=1, max_size=7))
def test_columns_have_the_same_words(datagrams: list[bytes]) -> None:
    """So nothing but a change tells records of Kafka, as columns, from the messages of the spool."""
    messages = [plain.parse_datagram(data) for data in datagrams]
    rows: list[list[object]] = [[], [], [], []]
    for one in messages:
        assert isinstance(one, plain.Message)
        pairs = [{"key": name, "value": value} for name, value in one.headers]
        for column, value in zip(rows, (one.topic.decode(), one.key, one.value, pairs), strict=True):
            column.append(value)
    contents = hash_contents(*map(pa.array, rows, OF.types))
    known = words_of(datagrams)
    sent = [message.timestamp or 1 for message in messages if isinstance(message, plain.Message)]
    sequences, found = np.array([row[0] for row in known]), np.zeros((2, len(known)), np.int64)
    word = np.zeros(1, np.int64)
    xxh = xxh64_function(), address_of(word)
    hash_rows(xxh, sequences, np.asarray(contents), np.array(sent), *found)
    assert [row[1:] for row in known] == list(map(tuple, found.T.tolist()))
