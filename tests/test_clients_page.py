"""docs/clients.md, docs/messages.md and README.md: each program that they show sends its message."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Message as Record

from cli.config.settings import read_file
from dispatch.embedded import EmbeddedKafka
from tests.bruce_client.doors import Doors
from tests.daemon import ROOT, RunningBruce

PAGE, MESSAGES = ROOT / "docs/clients.md", ROOT / "docs/messages.md"
PATIENCE_S = 300.0
"""For a compiler, on a machine that has other work."""
LEAST_JAVA = 16
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str = r"(?!toml)\w+") -> list[tuple[str, str]]:
    """(language, text) of what a page shows as code."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(name, text) for name, text in found if re.fullmatch(language, name)]


def sending_blocks() -> list[tuple[str, str]]:
    """The blocks that send something."""
    return [*blocks(PAGE), *(block for block in blocks(ROOT / "README.md") if "/run/bruce/" in block[1])]


WITH_HEADER = [
    pytest.param(*block, id=f"{block[0]}-{number}") for number, block in enumerate(blocks(MESSAGES))
]
SHOWN = [pytest.param(*block, id=f"{block[0]}-{number}") for number, block in enumerate(sending_blocks())]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """A daemon with every input that the page names."""
    with EmbeddedKafka(brokers=1, topics=[("orders", 1)]) as kafka:
        place = tmp_path_factory.mktemp("clients")
        bruce = RunningBruce(place, kafka.bootstrap_servers, segment_bytes=4 << 20)
        doors = Doors(bruce, kafka.bootstrap_servers)
        with bruce:
            doors.await_streams()
            yield doors


def program(*names: str) -> str:
    """The path of the first of these that is installed."""
    for name in names:
        if path := shutil.which(name):
            return path
    pytest.skip(f"there is no {' or '.join(names)}")


def run(*command: str | Path, cwd: Path, **environ: str) -> None:
    """Run to the end; fail with what it said."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def run_c(source: Path) -> None:
    """Compiled with every warning an error."""
    compiler = program("cc", "gcc", "clang")
    options = ["-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", f"-I{ROOT}/install/include"]
    run(compiler, *options, "-o", source.with_suffix(""), source, cwd=source.parent)
    run(source.with_suffix(""), cwd=source.parent)


def run_go(source: Path) -> None:
    """As a file of its own."""
    run(
        program("go"),
        "run",
        source,
        cwd=source.parent,
        GOCACHE=str(source.parent / "cache"),
        GO111MODULE="off",
    )


def run_java(source: Path) -> None:
    """From its source."""
    java = program("java")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    version = re.search(r'version "(\d+)', said)
    if not version or int(version[1]) < LEAST_JAVA:
        pytest.skip(f"Java is older than {LEAST_JAVA}: {said.splitlines()[0]}")
    run(java, source, cwd=source.parent)


def run_python(source: Path) -> None:
    """Warnings are errors."""
    run(sys.executable, "-W", "error", source, cwd=source.parent, PYTHONPATH=str(ROOT))


def run_bash(source: Path) -> None:
    """Ends at the first error."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run(program("bash"), "-eu", source, cwd=source.parent, PATH=path)


RUNNERS: Mapping[str, tuple[str, Callable[[Path], None]]] = {
    "c": ("sender.c", run_c),
    "go": ("sender.go", run_go),
    "javascript": ("sender.js", lambda source: run(program("node"), source, cwd=source.parent)),
    "java": ("Sender.java", run_java),
    "python": ("sender.py", run_python),
    "bash": ("sender.sh", run_bash),
}


def at(doors: Doors, text: str) -> str:
    """The program, with the addresses of this daemon in place of those that are shown."""
    text = text.replace("/run/bruce/bruce.sock", str(doors.datagrams))
    text = text.replace("/run/bruce/stream.sock", str(doors.stream))
    return re.sub(r"\b9123\b", str(doors.port), text)


@pytest.mark.long
@pytest.mark.parametrize(("language", "text"), SHOWN)
def test_a_program_that_is_shown_sends_its_message(
    doors: Doors, tmp_path: Path, language: str, text: str
) -> None:
    """Run as on the page, but for the address: key, value and time arrive in Kafka, once."""
    assert len(send(doors, tmp_path, language, text).headers() or []) == 1


@pytest.mark.long
@pytest.mark.parametrize(("language", "text"), WITH_HEADER)
def test_a_program_that_is_shown_sends_a_header(
    doors: Doors, tmp_path: Path, language: str, text: str
) -> None:
    """The same, with a header."""
    headers = send(doors, tmp_path, language, text).headers() or []
    assert headers[1:] == [("content-type", b"text/plain")]


def send(doors: Doors, tmp_path: Path, language: str, text: str) -> Record:
    """Run a program: the record that it makes."""
    name, runner = RUNNERS[language]
    source = tmp_path / name
    source.write_text(at(doors, text), encoding="utf-8")
    assert source.read_text() != text
    before, begun = doors.bruce.status().received, time.time_ns() // 1_000_000
    runner(source)
    ended = time.time_ns() // 1_000_000
    record = doors.records(before + 1)[before]
    assert (record.key(), record.value()) == (b"customer-7", b"hello")
    assert begun <= record.timestamp()[1] <= ended
    seen = doors.bruce.await_status(lambda s: s.delivered == before + 1)
    assert (seen.received, seen.discarded) == (before + 1, {})
    return record


def test_every_language_is_shown() -> None:
    """C, Go, Node.js, Java, shell and Python; and a test runs every program of the pages."""
    assert {language for language, _ in sending_blocks()} == set(RUNNERS)
    assert {language for language, _ in blocks(MESSAGES)} == set(RUNNERS)


def test_the_configuration_that_is_shown_is_one(tmp_path: Path) -> None:
    """It is read as bruce.toml is, and names the addresses that the programs use."""
    ((_, text),) = blocks(PAGE, "toml")
    (tmp_path / "bruce.toml").write_text(text)
    assert len(read_file(tmp_path / "bruce.toml")) == 3
    shown = " ".join(text for _, text in sending_blocks())
    assert all(str(address) in shown for address in tomllib.loads(text)["ingest"].values())
