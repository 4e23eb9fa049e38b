"""The imports of a command: on a busy host, a command that looks takes little of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.terminal import errors
from spool.format.wire import encode
from tests.daemon import ROOT
from tests.spool.fixture import SpoolFixture
from tests.spool.holder import held

HEAVY = {"confluent_kafka", "numba", "pandas", "pyarrow", "pyspark", "rich", "tornado"}
"""Each takes as long to load as a look at a spool."""
PROGRAM = f"""
import sys
from cli.app import brucectl
try:
    brucectl()
finally:
    print("imported:", *sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)
"""


def run(directory: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """brucectl on the spool in a directory; the last line of standard error lists its imports."""
    config = directory / "bruce.toml"
    servers = '[kafka]\n"bootstrap.servers" = "localhost:9092"\n'
    config.write_text(f'[spool]\ndirectory = "{directory}/spool"\n{servers}')
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments, "--config", config],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.sample(one_of=2)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status"], 1),
        (["status", "--json"], 1),
        (["discards", "--json"], 0),
        (["inspect", "segments"], 0),
        (["inspect", "frames", "--limit", "10"], 0),
        (["inspect", "records", "--limit", "10"], 0),
        (["inspect", "export", "--limit", "10"], 0),
        (["inspect", "show", "7"], 0),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_look_takes_no_heavy_library(tmp_path: Path, arguments: list[str], code: int) -> None:
    """In a pipe, on a spool of some thousand messages, whose daemon is dead; bruce.toml has its path."""
    spool = SpoolFixture(tmp_path, segment_bytes=256 << 10)
    spool.fill(100, messages=20)
    spool.stop()
    done = run(tmp_path, arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout
    assert done.stderr.splitlines()[-1] == "imported:"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["status"], 1), (["status", "--json"], 1), (["inspect", "show", "25000"], 0)],
    ids=["status", "status-json", "show"],
)
def test_nor_beside_a_daemon_whose_segment_is_long(tmp_path: Path, arguments: list[str], code: int) -> None:
    """5 MiB in 10,000 frames, beside a live keeper: they are not walked, and no loop is loaded."""
    spool = SpoolFixture(tmp_path, segment_bytes=8 << 20, max_bytes=64 << 20)
    messages = [encode(b"t%d" % n, b"v" * 100) for n in range(3)]
    for number in range(10_000):
        spool.append(messages, sender=(number % 2, 1))
        if number % 1000 == 0:
            spool.step()
    spool.step()
    spool.crash()
    with held(spool.layout):
        done = run(tmp_path, arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout
    assert done.stderr.splitlines()[-1] == "imported:"


def test_a_defect_is_not_a_finding() -> None:
    """An error that is none of ours shows its traceback, and its exit code is not that of a finding."""
    program = """
import typer
from cli.terminal.program import enter

app = typer.Typer()

@app.command()
def planted() -> None:
    raise RuntimeError("planted")

enter(app, "brucectl")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == errors.DEFECT
    assert "RuntimeError: planted" in done.stderr


@pytest.mark.parametrize("closed", [">&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing(tmp_path: Path, closed: str) -> None:
    """As from a service manager: no traceback, and the exit code of the command."""
    spool = SpoolFixture(tmp_path)
    spool.fill(3)
    spool.stop()
    servers = '[kafka]\n"bootstrap.servers" = "localhost:9092"\n'
    (tmp_path / "bruce.toml").write_text(f'[spool]\ndirectory = "{spool.layout.directory}"\n{servers}')
    for command in ("inspect segments", "discards", "inspect verify --json"):
        program = f"from cli.app import brucectl; brucectl()' {command} --config bruce.toml {closed}"
        done = subprocess.run(
            ["sh", "-c", f"cd {tmp_path}; PYTHONPATH={ROOT} {sys.executable} -c '{program}"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
