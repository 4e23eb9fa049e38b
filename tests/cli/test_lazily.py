"""What a command imports: whoever looks on a busy host takes little of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon import ROOT
from tests.spool.rig import Rig

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
    """In a pipe, on a spool of some thousand messages, whose daemon is dead; bruce.toml says where it is."""
    rig = Rig(tmp_path, segment_bytes=256 << 10)
    rig.fill(100, messages=20)
    rig.stop()
    config = tmp_path / "bruce.toml"
    servers = '[kafka]\n"bootstrap.servers" = "localhost:9092"\n'
    config.write_text(f'[spool]\ndirectory = "{tmp_path}/spool"\n{servers}')
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments, "--config", config],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout
    assert done.stderr.splitlines()[-1] == "imported:"
