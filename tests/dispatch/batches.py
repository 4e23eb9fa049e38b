"""Batches for these tests, made without a spool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spool.format.batch import KEYED, NULL_KEY, Batch, Topics, decode
from spool.format.segment_format import HEAD, PIDS, UIDS
from spool.format.wire import encode
from spool.log.writer import encode_body
from spool.native.digest import digest_function


class Message(NamedTuple):
    """A message as a program sends it."""

    sequence: int
    topic: int
    value: bytes
    key: bytes = b""
    timestamp: int = 1_700_000_000_000


def name_topics(*names: bytes) -> Topics:
    """Topics numbered in this order."""
    topics = Topics()
    for name in names:
        topics.add(name)
    return topics


def build_batch(topics: Topics, messages: Sequence[Message]) -> Batch:
    """The columns of `messages`, key and value one after the other in `data`."""
    data = b"".join(message.key + message.value for message in messages) or b"\0"
    key_bytes = np.array([len(message.key) for message in messages], np.int32)
    value_bytes = np.array([len(message.value) for message in messages], np.int32)
    sizes = (key_bytes + value_bytes).astype(np.int64)
    at = np.cumsum(sizes) - sizes
    count = len(messages)
    sequence = np.array([message.sequence for message in messages], np.int64)
    timestamp = np.array([message.timestamp for message in messages], np.int64)
    topic, zeros = np.array([message.topic for message in messages], np.int32), np.zeros(count, np.int64)
    traits = np.where(key_bytes == 0, NULL_KEY, 0)
    return Batch.of(
        np.frombuffer(data, np.uint8),
        topics,
        [sequence, timestamp, at, at + key_bytes, at, zeros],
        [topic, traits, zeros, key_bytes, value_bytes, sizes],
    )


def build_datagrams(topics: Topics, names: Sequence[bytes], messages: Sequence[Message]) -> Batch:
    """Messages as they were received, of topics with these names, whether they have a number or not."""
    datagrams = [
        encode(name, one.value, key=one.key, timestamp=one.timestamp, partition_key=one.sequence % 3 or None)
        for name, one in zip(names, messages, strict=True)
    ]
    lengths = np.array([len(one) for one in datagrams], np.int64)
    ends, zeros = np.cumsum(lengths), np.zeros(len(messages), np.int64)
    values, keys = (
        np.array([len(text) for text in texts])
        for texts in zip(*((m.value, m.key) for m in messages), strict=True)
    )
    sequences = np.array([one.sequence for one in messages], np.int64)
    return Batch.of(
        np.frombuffer(b"".join(datagrams), np.uint8),
        topics,
        [sequences, zeros, ends - values - 4 - keys, ends - values, ends - lengths, zeros],
        [
            zeros - 1,
            KEYED * (sequences % 3 > 0) | NULL_KEY * (keys == 0),
            sequences % 3,
            keys,
            values,
            lengths,
        ],
    )


def decoded(topics: Topics, datagrams: Sequence[bytes]) -> Batch:
    """Messages, decoded as from a frame that has them."""
    body, _ = encode_body(datagrams, {}, (0, 0))
    head = np.zeros((), HEAD)
    head["flags"], head["count"], head["body_bytes"] = UIDS | PIDS, len(datagrams), len(body)
    frame = np.frombuffer(head.tobytes() + body, np.uint8)
    table = np.array([[0, 0, len(datagrams), 0, UIDS | PIDS]], np.int64)
    return decode(frame, 0, table, topics, digest_function())
