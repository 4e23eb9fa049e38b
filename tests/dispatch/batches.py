"""Batches for these tests, made without a spool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spool.format.batch import Batch, Topics


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
    return Batch(
        data=np.frombuffer(data, np.uint8),
        topics=topics,
        sequence=np.array([message.sequence for message in messages], np.int64),
        topic=np.array([message.topic for message in messages], np.int32),
        keyed=np.zeros(count, np.bool_),
        partition_key=np.zeros(count, np.int32),
        timestamp=np.array([message.timestamp for message in messages], np.int64),
        key_at=at,
        key_bytes=key_bytes,
        value_at=at + key_bytes,
        value_bytes=value_bytes,
        datagram_at=at,
        datagram_bytes=sizes.astype(np.int32),
        received_ns=np.zeros(count, np.int64),
        uid=np.zeros(count, np.uint32),
        pid=np.zeros(count, np.uint32),
    )
