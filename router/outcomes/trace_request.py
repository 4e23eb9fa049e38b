"""How single messages are followed on request: by two small files beside the shared state, on tmpfs.

    bruce-SPOOL-BOOT.trace-ask   what is wanted, one JSON object, put there whole by `brucectl trace`
    bruce-SPOOL-BOOT.trace       what was seen, a JSON object a line, appended by the delivery worker

The delivery worker looks for the first a few times a second. A worker that is started again goes on with the
trace that it finds. It ends when its time is over, when its bytes are used up, or when the first file goes.
Both files are believed only when no other user can have made them (spool.storage.ownership).
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.timing import LONGEST_TRACE_S
from spool.storage.ownership import Owners, read_believed

VERSION = 1
MOST_BYTES = 16 << 20
"""Of its lines: then it is over."""
MOST_ASK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """Which messages are to be followed, and for how long."""

    topics: tuple[bytes, ...]
    """Of these topics; none: of all."""
    key: bytes | None
    """With this Kafka key; None: with any, or none."""
    until_ns: int
    """On CLOCK_MONOTONIC, which all processes of the host share."""
    most_bytes: int
    """Of lines; the one that reaches beyond is the last."""
    payload: bool
    """Whether keys and values are to be seen, too."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Tells traces apart."""

    def is_over(self) -> bool:
        """Whether its time is over."""
        now = time.monotonic_ns()
        return not now < self.until_ns <= now + int(1e9 * LONGEST_TRACE_S)

    def encode(self) -> bytes:
        """The bytes of the file."""
        document = {
            "version": VERSION,
            "token": self.token,
            "topics": [base64.b64encode(topic).decode() for topic in self.topics],
            "key": None if self.key is None else base64.b64encode(self.key).decode(),
            "until_ns": self.until_ns,
            "most_bytes": self.most_bytes,
            "payload": self.payload,
        }
        return json.dumps(document).encode()


def decode(data: bytes) -> TraceRequest | None:
    """The request in a file; None when it is of another release, or nothing that `encode` has written."""
    try:
        found: dict[str, Any] = json.loads(data)
        key = found["key"]
        ask = TraceRequest(
            tuple(base64.b64decode(topic) for topic in found["topics"]),
            None if key is None else base64.b64decode(key),
            int(found["until_ns"]),
            min(int(found["most_bytes"]), MOST_BYTES),
            bool(found["payload"]),
            str(found["token"]),
        )
    except (ValueError, KeyError, TypeError):
        return None
    return ask if found["version"] == VERSION else None


def request_path(shared: Path) -> Path:
    """The file of the request, beside a shared state."""
    return shared.with_suffix(".trace-ask")


def events_path(shared: Path) -> Path:
    """The file of the events, beside a shared state."""
    return shared.with_suffix(".trace")


def read_request(shared: Path, owners: Owners = ()) -> TraceRequest | None:
    """The request of a user who may make one: ourselves, root, or one of `owners`; None without any.

    Raises NotAFile, NotOurs, OSError.
    """
    try:
        return decode(read_believed(request_path(shared), MOST_ASK_BYTES, owners=owners))
    except FileNotFoundError:
        return None
