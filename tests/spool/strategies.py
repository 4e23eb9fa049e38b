"""Datagrams that programs send, right and wrong, for Hypothesis to choose from."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from spool.format.wire import encode, encode_batch, encode_message

topics = st.binary(min_size=1, max_size=40)
i16, i32, i64 = (st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (16, 32, 64))
messages = st.fixed_dictionaries(
    {"topic": topics, "value": st.binary(max_size=200)},
    optional={"key": st.binary(max_size=40), "timestamp": i64, "partition_key": i32},
)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=20)), max_size=4)
numbers = st.sampled_from(("partition", "partition_key"))
long_messages = st.builds(
    lambda fields, number: fields | number,
    st.fixed_dictionaries(
        {"topic": topics, "value": st.none() | st.binary(max_size=200)},
        optional={"key": st.none() | st.binary(max_size=40), "timestamp": i64, "headers": headers},
    ),
    st.dictionaries(numbers, i32, max_size=1),
)
"""Fields of messages of the kind Message."""
datagrams = messages.map(lambda fields: encode(**fields)) | long_messages.map(
    lambda fields: encode_message(**fields)
)
"""Well-formed messages."""
batches = st.lists(datagrams, min_size=1, max_size=5).map(encode_batch)


@st.composite
def near_misses(draw: st.DrawFn) -> bytes:
    """A datagram that is right, or wrong in one or two places."""
    data = bytearray(draw(datagrams | batches))
    for _ in range(draw(st.integers(0, 2))):
        change = draw(st.sampled_from(("cut", "grow", "byte", "word", "size")))
        at = draw(st.integers(0, max(0, len(data) - 1)))
        if change == "cut":
            del data[at:]
        elif change == "grow":
            data += draw(st.binary(min_size=1, max_size=20))
        elif change == "byte" and data:
            data[at] = draw(st.integers(0, 255))
        elif change == "word" and len(data) >= 4:
            at = min(at, len(data) - 4)
            data[at : at + 4] = struct.pack(">i", draw(i32 | st.sampled_from((0, -1, 1, 256, 257, 258, 259))))
        if draw(st.booleans()) and len(data) >= 4:
            data[:4] = struct.pack(">i", len(data))
    return bytes(data)


anything = st.binary(max_size=100) | near_misses()
"""Datagrams of every kind."""
