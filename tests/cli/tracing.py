"""A `brucectl trace` that runs, and what it traces."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cli.inspect.trace import page_of
from spool.format.wire import encode
from tests.daemon import PATIENCE_S, ROOT, RunningBruce

SECRET = b"payload-4711"


class Tracing:
    """A `brucectl trace` that runs."""

    def __init__(self, bruce: RunningBruce, out: Path, *arguments: str) -> None:
        self.out, self._bruce = out, bruce
        with out.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", "from cli.app import brucectl; brucectl()", "trace", *arguments],
                cwd=ROOT,
                env=bruce.environ,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def events(self) -> list[dict[str, Any]]:
        """The events that it has reported so far."""
        lines = self.out.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def names(self, sequence: int | None = None) -> list[str]:
        """The names of events, of one message or of all."""
        return [e["event"] for e in self.events() if sequence is None or e.get("sequence") == sequence]

    def has(self, event: str, count: int = 1) -> bool:
        """Whether it has reported this number of events."""
        assert self.process.poll() is None or event in self.names(), self.out.read_text()
        return self.names().count(event) >= count


@contextmanager
def trace(bruce: RunningBruce, out: Path, *arguments: str) -> Iterator[Tracing]:
    """A trace that has begun."""
    found = Tracing(bruce, out, "--json", *arguments)
    try:
        bruce.await_true(lambda: found.has("began"))
        yield found
    finally:
        found.process.send_signal(signal.SIGTERM)
        found.process.wait(PATIENCE_S)


def message(topic: bytes, number: int, key: bytes = b"") -> bytes:
    """A message that carries its number."""
    return encode(topic, SECRET + b" %d" % number, key=key, partition_key=number)


def bruce_page(bruce: RunningBruce) -> Path:
    """The daemon's shared state."""
    found = page_of(bruce.spool)
    return bruce.runtime / found.name
