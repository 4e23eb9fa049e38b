"""The messages of one burst as a table. The store loop knows nothing else of where they came from.

`ingest.buffers.staging` lists the datagrams of a receive buffer, `ingest.buffers.connection_buffers` the
messages of runs. A row of the table, a MESSAGE, is 104 bytes of int64:

    at        address of the first byte
    first     bytes at `at`: all of them, but for a large datagram
    rest      address of the other bytes; 0 for none
    length    bytes
    uid, pid, gid    of the sender; NO_ID where the kernel does not say; by TCP the gid is TCP_GID
    input     DATAGRAM, STREAM, TCP or KAFKA (spool.shared.histogram)
    refused   the Reason for which its receiver refuses it; 0 for none
    outcome   address of an OUTCOME, where the store loop says what became of it; 0 for none
    batch     the store loop's: how many messages it has, as a batch; 0 for a message by itself
    wrong     the store loop's: where in a batch the message begins for which it is refused
    verdict   the store loop's: 0 accepts the message, a Reason refuses it, REASONS + n refuses it for its
              topic, which is number n of those with a quota

Addresses are those of this process. After a crash the successor lists the messages again.

    OUTCOME := follows:i64 verdict:i64 sequence:i64

By `follows`, 1 or 0, its receiver says that it is refused if the row before is: messages that must stay in
order. `verdict` is 1 for a message or batch that is stored, from `sequence` on; 0 at first; else -reason. It
is written before the frame, so it holds once the burst is in the log.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from spool.format.segment_format import MAX_BURST
from spool.native.kernel import subkernel
from spool.native.memory import Address, copy

MESSAGE = np.dtype(
    [
        (name, "<i8")
        for name in (
            *("at", "first", "rest", "length", "uid", "pid", "gid", "input", "refused"),
            *("outcome", "batch", "wrong", "verdict"),
        )
    ]
)
"""A message of a burst, or a batch of messages, wherever it came from."""

OUTCOME_BYTES = 24
FOLLOWS, VERDICT, FIRST = 0, 8, 16
"""Offsets in an OUTCOME."""
IS_STORED = 1

Messages = npt.NDArray[np.void]
"""MESSAGE[n]"""
Message = Any
"""One row of it, by reference."""


def new_messages() -> Messages:
    """MESSAGE[MAX_BURST], room for every burst."""
    return np.zeros(MAX_BURST, MESSAGE)


@subkernel
def copy_message(target: Address, message: Message) -> None:
    """Copy the `length` bytes of a message to one place."""
    copy(target, message["at"], message["first"])
    if message["rest"] != 0:
        copy(target + message["first"], message["rest"], message["length"] - message["first"])


def image(messages: Messages) -> bytes:
    """All messages, each behind its length:u32, for quarantine."""
    parts = []
    for row in messages:
        length, first = int(row["length"]), int(row["first"])
        parts += [length.to_bytes(4, "little"), ctypes.string_at(int(row["at"]), first)]
        parts += [ctypes.string_at(int(row["rest"]), length - first)] if row["rest"] else []
    return b"".join(parts)
