"""The values that the load generator sends and the verifier expects; each can be checked by itself.

    value := sender:u16 traits:u8 batch:u8 key:i32 id:u64 sent_ns:i64  fill  id:u64          little-endian

`id` counts from 0 for each sender, so that (sender, id) is unique, and one number tells the messages of a
sender. `key` is the partition key, or NO_KEY for an AnyPartition message; for one sender, topic and
partition key the ids rise. `sent_ns` is when the message was sent, or due on an open schedule; its
milliseconds are the message's timestamp. The fill is a prefix of PATTERN. The message's own key, if it has
one, is 8 bytes: the partition key or the id, as a little-endian int64.

`traits` are those below, and `batch` is one less than the messages of its batch: the ids of a batch go from
one multiple of that number to the next. A message that names partition n has the `key` PLACES + n, and no key
of its own. A tombstone has its value in a header.
"""

from __future__ import annotations

import numpy as np

HEAD = np.dtype(
    [
        ("sender", "<u2"),
        ("traits", "u1"),
        ("batch", "u1"),
        ("key", "<i4"),
        ("id", "<u8"),
        ("sent_ns", "<i8"),
    ]
)
HEAD_BYTES = HEAD.itemsize
TAIL_BYTES = 8
LEAST_BYTES = HEAD_BYTES + TAIL_BYTES
NO_KEY = -(1 << 31)
PLACES = 1 << 20
WITH_HEADERS, PLACED, TOMBSTONE = 1, 2, 4
KEY_BYTES = 8
PATTERN = bytes((index * 131 + (index >> 8)) & 0xFF for index in range(1 << 16))

TRACE = "traceparent"
TRACE_BYTES = 55
"""As W3C's trace context has it; here the id, and a prefix of PATTERN."""
TYPE = ("content-type", b"text/plain")
VALUE, NOTHING = "value", ("nothing", None)
"""Of a tombstone: the name of the header with its value, and the one behind it."""

Headers = list[tuple[str, bytes | None]]


def headers_of(traits: int, number: bytes, value: bytes) -> Headers:
    """The sender's own headers of a message. `number`: its id, 8 bytes."""
    found: Headers = []
    if traits & WITH_HEADERS:
        found += [(TRACE, number + PATTERN[: TRACE_BYTES - len(number)]), TYPE]
    if traits & TOMBSTONE:
        found += [(VALUE, value), NOTHING]
    return found


def blank_value(length: int) -> bytes:
    """A value with its fill, head and tail still to be written. Raises ValueError when it is too short."""
    if length < LEAST_BYTES:
        raise ValueError(f"a value has at least {LEAST_BYTES} bytes, not {length}")
    return bytes(HEAD_BYTES) + PATTERN[: length - LEAST_BYTES] + bytes(TAIL_BYTES)
