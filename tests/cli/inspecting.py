"""How the tests of `brucectl inspect` call it, and what is in a folder before and after."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from tests.cli.program import Ended, run

PROGRAM = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]
ODD = b"\xff\x00tab\tline\nescape\x1b[31m"


def inspect(*arguments: object, code: int = 0) -> Ended:
    """Run `brucectl inspect` to its end."""
    done = run("inspect", *arguments)
    assert done.returncode == code, done.stderr
    return done


def lines(*arguments: object, code: int = 0) -> list[dict[str, Any]]:
    """The output of `brucectl inspect records --json`."""
    return [
        json.loads(line) for line in inspect("records", "--json", *arguments, code=code).stdout.splitlines()
    ]


def state_of(directory: Path) -> dict[str, tuple[str, int]]:
    """Content and modification time of every file."""
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }
