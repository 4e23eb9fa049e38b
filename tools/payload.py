"""The values that the load generator sends and the verifier expects; each can be checked by itself.

    value := sender:u32 key:i32 id:u64 sent_ns:i64  fill  id:u64          little-endian

`id` counts from 0 for each sender, so that (sender, id) is unique, and one number tells the messages of a
sender. `key` is the partition key, or NO_KEY for an AnyPartition message; for one sender, topic and
partition key the ids rise. `sent_ns` is when the message was sent, or due on an open schedule; its
milliseconds are the message's timestamp. The fill is a prefix of PATTERN. The message's own key, if it has
one, is 8 bytes: the partition key or the id, as a little-endian int64.
"""

from __future__ import annotations

import numpy as np

HEAD = np.dtype([("sender", "<u4"), ("key", "<i4"), ("id", "<u8"), ("sent_ns", "<i8")])
HEAD_BYTES = HEAD.itemsize
TAIL_BYTES = 8
LEAST_BYTES = HEAD_BYTES + TAIL_BYTES
NO_KEY = -(1 << 31)
KEY_BYTES = 8
PATTERN = bytes((index * 131 + (index >> 8)) & 0xFF for index in range(1 << 16))


def blank_value(length: int) -> bytes:
    """A value with its fill, head and tail still to be written. Raises ValueError when it is too short."""
    if length < LEAST_BYTES:
        raise ValueError(f"a value has at least {LEAST_BYTES} bytes, not {length}")
    return bytes(HEAD_BYTES) + PATTERN[: length - LEAST_BYTES] + bytes(TAIL_BYTES)
