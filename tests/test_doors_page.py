"""docs/doors.md: each program that it shows produces its record, through the Kafka input, to Kafka."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from tests.cli.daemon.test_kafka_input import DoorBruce
from tests.daemon import ROOT, consume
from tests.test_clients_page import blocks, program

PAGE = ROOT / "docs/doors.md"
SHOWN = [pytest.param(*block, id=f"{block[0]}-{number}") for number, block in enumerate(blocks(PAGE))]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker."""
    with EmbeddedKafka(brokers=1, topics=[("orders", 1)]) as cluster:
        yield cluster


@pytest.mark.parametrize(("language", "text"), SHOWN)
def test_it_produces(kafka: EmbeddedKafka, tmp_path: Path, language: str, text: str) -> None:
    """The record that the program shows is in Kafka, with its key, and its headers if it has some."""
    command = [sys.executable, "-c"] if language == "python" else [program("bash"), "-euc"]
    if language == "bash":
        program("kcat")
    with DoorBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        shown = text.replace("127.0.0.1:9092", bruce.address)
        done = subprocess.run(
            [*command, shown], capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        bruce.await_status(lambda seen: (seen.received, seen.backlog) == (1, 0))
    (record,) = consume(kafka.bootstrap_servers, "orders", 1, 1)
    assert (record.key(), record.value()) == (b"customer-7", b"hello")
    if "headers" in text:
        assert ("kind", b"greeting") in (record.headers() or [])


def test_the_input_is_accepted(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The table that the page shows is one that the daemon takes, with all that it mentions."""
    ((_language, text),) = blocks(PAGE, "toml")
    more = [line.removeprefix("# ").partition(" #")[0] for line in text.splitlines() if line.startswith("# ")]
    assert len(more) == 2
    with DoorBruce(tmp_path, kafka.bootstrap_servers, *more) as bruce:
        bruce.await_status(lambda seen: seen.kafka is not None)
