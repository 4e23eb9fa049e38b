"""A message as bruce reads it, from a datagram or a stream. `spool.format.wire` has the format.

This package imports nothing but Python's own library, so it has an encoder of its own.
"""

from __future__ import annotations

import struct

ANY_PARTITION = 256
PARTITION_KEY = 257
MAX_DATAGRAM_BYTES = 65536
"""Bruce's limit; a longer datagram is counted as truncated."""
MAX_TOPIC_BYTES = 32767

_ANY = struct.Struct(">ihhhh")
_KEYED = struct.Struct(">ihhhih")
_TIME_AND_KEY = struct.Struct(">qi")
_LENGTH = struct.Struct(">i")


def encode(
    topic: bytes, value: bytes, *, key: bytes = b"", timestamp: int = 0, partition_key: int | None = None
) -> bytes:
    """One message. `timestamp` is in ms since the epoch; a `partition_key` makes it a PartitionKey message.

    Raises ValueError when the topic is empty or longer than 32,767 bytes, struct.error when a number does not
    fit into its field.
    """
    if not 0 < len(topic) <= MAX_TOPIC_BYTES:
        raise ValueError(f"a topic has 1 to {MAX_TOPIC_BYTES} bytes")
    rest = topic + _TIME_AND_KEY.pack(timestamp, len(key)) + key + _LENGTH.pack(len(value)) + value
    if partition_key is None:
        return _ANY.pack(_ANY.size + len(rest), ANY_PARTITION, 0, 0, len(topic)) + rest
    size = _KEYED.size + len(rest)
    return _KEYED.pack(size, PARTITION_KEY, 0, 0, partition_key, len(topic)) + rest
