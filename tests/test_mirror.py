"""The tests of a module are found by its name."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("bruce_client", "cli", "dispatch", "ingest", "pipeline", "router", "spool", "status")
MODULES = sorted(
    path.relative_to(ROOT)
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path.name != "__init__.py"
)
DOCSTRINGS = "\n".join(
    ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    for path in (ROOT / "tests").rglob("test_*.py")
)
ELSEWHERE = {
    "ingest.buffers.connection_buffer": "loops of one worker, which show in what the other stores",
    "ingest.buffers.connection_buffers": "loops of one worker, which show in what the other stores",
    "ingest.errors": "the classes of errors",
    "ingest.sockets.holder": "a program, which shows in what it hands to those who ask it",
    "ingest.worker.worker": "its loop is that of the burst; the rest shows in what a death leaves",
    "pipeline.errors": "the classes of errors",
    "router.context": "protocols and records",
    "router.timing": "constants",
    "spool.errors": "the classes of errors",
    "spool.format.segment": "its segments are read by the tests of every reader",
    "spool.fsck.finding": "a record",
    "spool.marks.task_files": "files for the import of outcomes alone, which shows what it makes of them",
    "spool.native.digest": "calls of a library, which the second reader calls for itself",
    "spool.native.memory": "single instructions, which show in the loops that have them",
    "status.report": "records",
}
"""Modules that a neighbour's tests prove, and why; a docstring there names the module. No new ones."""


def test_each_module_has_its_tests() -> None:
    """In the file of the same name under tests/, but for those that are listed."""
    assert MODULES
    assert [dotted(module) for module in MODULES if not is_mirrored(module)] == sorted(ELSEWHERE)


def test_those_elsewhere_are_named_there() -> None:
    """By the docstring of a file of tests."""
    assert [module for module in ELSEWHERE if f"`{module}`" not in DOCSTRINGS] == []


def is_mirrored(module: Path) -> bool:
    """Whether there is a file of tests of its name."""
    return (ROOT / "tests" / module.parent / f"test_{module.name}").exists()


def dotted(module: Path) -> str:
    """The name by which it is imported."""
    return ".".join(module.with_suffix("").parts)
