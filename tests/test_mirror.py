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


def test_each_module_has_its_tests() -> None:
    """In the file of the same name under tests/, or in one whose docstring names the module."""
    assert MODULES
    assert [str(module) for module in MODULES if not (_mirrored(module) or _named(module))] == []


def _mirrored(module: Path) -> bool:
    return (ROOT / "tests" / module.parent / f"test_{module.name}").exists()


def _named(module: Path) -> bool:
    return f"`{'.'.join(module.with_suffix('').parts)}`" in DOCSTRINGS
