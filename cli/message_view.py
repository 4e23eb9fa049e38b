"""One message as a page for people: what is known of it, then its bytes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime

from cli.message import Message, fate_name
from cli.records import NOBODY, printable

_WIDTH = 16
"""Bytes on a line of the dump."""
_ASCII = bytes(byte if byte in range(0x20, 0x7F) else ord(".") for byte in range(256))
_FATES = {
    "waiting": "not yet: it waits for its turn, or for Kafka",
    "delivered": "yes: Kafka has acknowledged it",
    "discarded": "no: it was discarded, {reason}",
    "dead_lettered": "to the dead-letter topic: {reason}",
    "unknown": "not known: the marks are not there, or do not say",
}
_COMMITTED = {
    True: "yes, and synced",
    False: "no: a power loss could still take it",
    None: "no index says so",
}


def page(message: Message, *, values: bool) -> Iterator[str]:
    """Lines of text."""
    found = message.found
    batch, row, head = found.batch, found.row, found.head
    fate, reason = fate_name(message.fate)
    facts = {
        "message": f"{message.sequence} of spool {uuid.UUID(bytes=message.spool)}",
        "received": _received(message),
        "segment": f"{found.path}, number {found.header['number']}{', compressed' if found.packed else ''}",
        "frame": f"at byte {found.offset:,}, message {row + 1} of {head['count']}, "
        f"xxh3 {int(head['digest']):016x}, verified",
        "committed": _COMMITTED[message.committed],
        "delivered": _FATES[fate].format(reason=reason),
        "topic": printable(batch.topics.names[int(batch.topic[row])]),
        "partition": _partition(message),
        **_kafka(message),
        "timestamp": f"{batch.timestamp[row]} ms, {_time(int(batch.timestamp[row]) / 1e3)}, by its sender",
        "key": _bytes(int(batch.key_bytes[row])),
        "value": _bytes(int(batch.value_bytes[row])),
    }
    width = max(map(len, facts))
    yield from (f"{name:<{width}}  {text}" for name, text in facts.items())
    if values:
        for name, data in (("key", batch.key(row) or b""), ("value", batch.value(row))):
            if data:
                yield from ("", name, *hex_lines(data))


def _received(message: Message) -> str:
    batch, row = message.found.batch, message.found.row
    uid, pid = int(batch.uid[row]), int(batch.pid[row])
    sender = "a sender the kernel did not name" if NOBODY in (uid, pid) else f"uid {uid}, pid {pid}"
    return f"{_time(int(batch.received_ns[row]) / 1e9)}, from {sender}"


def _partition(message: Message) -> str:
    choice = message.choice
    return choice.reason if choice.partition is None else f"{choice.partition}: {choice.reason}"


def _kafka(message: Message) -> dict[str, str]:
    if message.records is None:
        return {}
    places = [f"partition {at.partition}, offset {at.offset}" for at in message.records]
    return {"in Kafka": "; ".join(places) or "no record with its id, from its own time on"}


def _bytes(count: int) -> str:
    return f"{count:,} bytes" if count else "empty"


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return "no time of any calendar"


def hex_lines(data: bytes) -> Iterator[str]:
    """Offset, bytes in hexadecimal, and what of them is printable ASCII."""
    for at in range(0, len(data), _WIDTH):
        part = data[at : at + _WIDTH]
        text = part.translate(_ASCII).decode("ascii")
        yield f"  {at:08x}  {part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}  {text}"
