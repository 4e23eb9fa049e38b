"""The faults found, and the files kept of them."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Evidence:
    """The files of one run, and its violations. For several threads."""

    def __init__(self, directory: Path, *, heading: Mapping[str, Any]) -> None:
        self.directory = directory
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self.violations: list[str] = []
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self.record("options", {name: str(value) for name, value in heading.items()})

    def say(self, text: str) -> None:
        """Print a line, with the time since the beginning."""
        print(f"{time.monotonic() - self._begun:7.1f} s  {text}", flush=True)

    def record(self, name: str, row: Mapping[str, Any]) -> None:
        """Add a row to NAME.jsonl."""
        with self._lock, (self.directory / f"{name}.jsonl").open("a") as file:
            print(json.dumps({"at_s": round(time.monotonic() - self._begun, 4), **row}), file=file)

    def violation(self, text: str, found: Mapping[str, Any] | None = None) -> None:
        """Report a fault: at once, and again at the end."""
        self.violations.append(text)
        self.record("violations", {"violation": text, "found": found or {}})
        print(f"VIOLATION: {text}", file=sys.stderr, flush=True)

    def expect(self, holds: object, text: str, found: Mapping[str, Any] | None = None) -> None:
        """Report a violation unless it holds."""
        if not holds:
            self.violation(text, found)

    def conclude(self, summary: Mapping[str, Any], *, keep: bool) -> int:
        """Print the summary, remove large files after a run without faults; the exit code."""
        self.record("summary", summary)
        print(json.dumps({**summary, "violations": self.violations}, indent=2), flush=True)
        if self.violations:
            print(f"{len(self.violations)} violations; the evidence is in {self.directory}", flush=True)
            return 1
        if not keep:
            for large in ("spool", "kafka", "marks", "hosts", "spark"):
                shutil.rmtree(self.directory / large, ignore_errors=True)
        print("nothing is missing", flush=True)
        return 0
