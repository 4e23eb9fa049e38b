"""A client's quota, set by the request of Kafka's protocol for it, which librdkafka has no call for.

AlterClientQuotas, API key 49, version 0 (KIP-546); all integers big-endian, strings behind an int16 length:

    request  := size:i32 api_key:i16 version:i16 correlation:i32 client_id
                entries:i32 {parts:i32 {type name} ops:i32 {key value:f64 remove:i8}} validate_only:i8
    response := size:i32 correlation:i32 throttle_ms:i32 entries:i32 {error:i16 ...}
"""

from __future__ import annotations

import socket
import struct

PATIENCE_S = 60.0


def limit_producer(address: str, client_id: str, bytes_per_second: float) -> None:
    """Limit clients of this id to this rate at each broker; beyond that it asks for a pause."""
    host, port = address.rsplit(":", 1)
    entity = struct.pack(">i", 1) + _string("client-id") + _string(client_id)
    change = struct.pack(">i", 1) + _string("producer_byte_rate") + struct.pack(">db", bytes_per_second, 0)
    request = (
        struct.pack(">hhi", 49, 0, 1) + _string("tests") + struct.pack(">i", 1) + entity + change + b"\0"
    )
    with socket.create_connection((host, int(port)), PATIENCE_S) as broker:
        broker.sendall(struct.pack(">i", len(request)) + request)
        answer = broker.makefile("rb").read(4 + 4 + 4 + 4 + 2)
    _, correlation, _, entries, error = struct.unpack(">iiiih", answer)
    assert (correlation, entries, error) == (1, 1, 0)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
