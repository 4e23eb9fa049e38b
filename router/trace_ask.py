"""How somebody has single messages followed: by two small files beside the shared page, on tmpfs.

    bruce-SPOOL-BOOT.trace-ask   what is wanted, one JSON object, put there whole by `brucectl trace`
    bruce-SPOOL-BOOT.trace       what was seen, a JSON object a line, appended by the delivery worker

The delivery worker looks for the first a few times a second. A worker that is started anew goes on with the
trace that it finds. It ends when its time is over, when its bytes are used up, or when the first file goes.
Both are believed only of files that nobody else can have made (spool.own).
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spool.own import Owners, read_believed

VERSION = 1
MOST_SECONDS, MOST_BYTES = 3600.0, 16 << 20
"""A trace that nobody ends is over by then."""
MOST_ASK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Ask:
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
        return not now < self.until_ns <= now + int(1e9 * MOST_SECONDS)

    def encode(self) -> bytes:
        """As it stands in the file."""
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


def decode(data: bytes) -> Ask | None:
    """What is asked for; None when it is of another release, or nothing that `encode` has written."""
    try:
        found: dict[str, Any] = json.loads(data)
        key = found["key"]
        ask = Ask(
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


def ask_path(page: Path) -> Path:
    """Where the ask lies, beside a shared page."""
    return page.with_suffix(".trace-ask")


def events_path(page: Path) -> Path:
    """Where the events lie, beside a shared page."""
    return page.with_suffix(".trace")


def read_ask(page: Path, owners: Owners = ()) -> Ask | None:
    """What is asked for by somebody who may: ourselves, root, or one of `owners`; None when nothing is.

    Raises NotAFile, NotOurs, OSError.
    """
    try:
        return decode(read_believed(ask_path(page), MOST_ASK_BYTES, owners=owners))
    except FileNotFoundError:
        return None
