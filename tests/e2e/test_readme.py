"""The first lines that README.md lets a newcomer type do what it says, from the first start of all on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.config.config import SYSTEM_FILE
from tests.daemon import ROOT, START_S, free_port

INSTALLS = ("python3 -m venv", "pip install")


def first_lines() -> list[str]:
    """The first block of commands in README.md, without those that install bruce."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("    python3 -m venv"))
    block = lines[begin : lines.index("", begin)]
    return [line.strip() for line in block if not any(words in line for words in INSTALLS)]


@pytest.mark.long
def test_the_first_lines(tmp_path: Path) -> None:
    """Typed one after the other, with nothing compiled: one message is received, delivered and found."""
    if SYSTEM_FILE.exists():
        pytest.skip(f"{SYSTEM_FILE} configures bruce on this host")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("BRUCE_", "XDG_"))}
    environ |= {
        "HOME": str(tmp_path),
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}",
        # These places are root's by default, and one of them a port that another bruce may have.
        "BRUCE_RUNTIME_DIRECTORY": str(tmp_path),
        "BRUCE_INGEST_DATAGRAM_SOCKET": str(tmp_path / "bruce.sock"),
        "BRUCE_STATUS_PORT": str(free_port()),
    }
    script = "\n".join(["set -e", *first_lines(), "kill $!", "wait $!"])
    with (tmp_path / "log").open("wb") as log:
        typed = subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = typed.communicate(timeout=START_S)
        finally:
            if typed.poll() is None:
                os.killpg(typed.pid, signal.SIGKILL)
    told = (tmp_path / "log").read_text()
    assert typed.returncode == 0, told
    rows = [line.split("\t") for line in said.splitlines()]
    assert ["received", "1"] in rows
    assert ["delivered", "1"] in rows
    assert "orders" in said.partition("watermark")[2]
    assert (tmp_path / ".local/state/bruce").is_dir()
