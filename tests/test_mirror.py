"""The tests of a module are found by its name."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("bruce_client", "cli", "dispatch", "ingest", "pipeline", "router", "spool", "status")
MODULES = sorted(
    path.relative_to(ROOT)
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path.name != "__init__.py"
)


def test_each_module_has_its_tests() -> None:
    """In the file of the same name under tests/, which has one test at least."""
    assert MODULES
    assert [str(module) for module in MODULES if not has_tests(module)] == []


def has_tests(module: Path) -> bool:
    """Whether there is a file of tests of its name."""
    path = ROOT / "tests" / module.parent / f"test_{module.name}"
    return path.exists() and "\ndef test_" in path.read_text(encoding="utf-8")
