"""A daemon whose page is served, with some past traffic: started once for all tests of a file."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.daemon import PATIENCE_S, RunningBruce, free_port
from tests.status.test_witness import write

EVIL = b'<img src=x onerror="document.title=1">'
"""A topic whose name would run as code in a page that does not escape it."""
SECRET = "s3cret-of-kafka-4711"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server."""

    status: int
    headers: Message
    body: bytes = field(repr=False)

    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """The HTTP side of a daemon."""

    def __init__(self, bruce: RunningBruce, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.bruce, self.port, self._tls = bruce, port, tls
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Ask once."""
        return self.ask(path, None, headers)

    def ask(self, path: str, body: bytes | None, headers: Mapping[str, str] | None = None) -> Answer:
        """Ask once; with a body, by POST."""
        request = urllib.request.Request(self.url + path, body, dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S, context=self._tls) as found:
                return Answer(found.status, found.headers, found.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.headers, error.read())

    def answers(self) -> bool:
        """Whether the server answers."""
        try:
            return self.get("/healthz").status > 0
        except OSError:
            return False


def serve(
    directory: Path, kafka: EmbeddedKafka, settings: Mapping[str, Mapping[str, object]] | None = None
) -> tuple[RunningBruce, int]:
    """A daemon that is not started yet, and the port of its page."""
    port = free_port()
    status = {"status": {"port": port, **(settings or {}).get("status", {})}}
    return RunningBruce(directory, kafka.bootstrap_servers, settings={**(settings or {}), **status}), port


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    """A cluster for all tests of a file."""
    with EmbeddedKafka(brokers=3, topics=[("t", 4), ("u", 1)]) as running:
        yield running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, kafka: EmbeddedKafka) -> Iterator[Served]:
    """40 messages of `t` delivered, two malformed ones, one of a topic that does not exist; a witness."""
    directory = tmp_path_factory.mktemp("served")
    write(directory / "witness")
    settings = {
        "kafka": {"ssl.key.password": SECRET},
        "dispatch": {"unknown_topic_seconds": 0},
        "witness": {"directory": str(directory / "witness")},
    }
    bruce, port = serve(directory, kafka, settings)
    with bruce:
        bruce.send([*(encode(b"t", b"%d" % n) for n in range(40)), b"short", b"x" * 20, encode(EVIL, b"v")])
        bruce.await_status(lambda s: s.delivered == 40 and sum(s.discarded.values()) == 3)
        # The marks have it before the page does.
        bruce.await_status(lambda s: sum(broker.acknowledged for broker in s.brokers) == 40)
        found = Served(bruce, port)
        bruce.await_true(found.answers)
        yield found
