"""The Python environment of tools/test: programs that need its packages switch to it by themselves."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

PYTHON = Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python"


def enter() -> None:
    """Restart under .venv's Python if this one lacks our packages; without it exit 2 with one sentence."""
    if find_spec("numba"):
        return
    if not PYTHON.exists():
        print(f"{sys.argv[0]} needs what tools/test sets up in .venv: run tools/test once", file=sys.stderr)
        raise SystemExit(2)
    os.execv(PYTHON, [str(PYTHON), *sys.argv])  # noqa: S606 - no shell is wanted
