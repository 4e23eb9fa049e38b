"""Files of the spool are opened in two modules, which check them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOMES = {
    "spool/storage/disk.py": "files of the spool",
    "spool/storage/ownership.py": "files in memory",
    "spool/storage/lock.py": "/proc",
    "spool/storage/failpoint.py": "a file that a test names",
    "spool/native/intrinsics.py": "our own source",
    "spool/native/library.py": "our own source, and code that is made of it",
    "spool/native/linking.py": "the same",
    "ingest/watch.py": "/proc",
    "ingest/role.py": "/proc",
    "ingest/sockets/holding.py": "a folder, which is judged by its descriptor",
}
METHODS = {"read_text", "read_bytes", "write_text", "write_bytes", "touch", "fromfile", "memmap"}
OF_OS = {"open", "FileIO", "truncate", "mkfifo", "mknod", "popen"}


def opens(node: ast.Call) -> bool:
    """Whether a call opens a file by its path. Our own functions have bare names, and a bound."""
    called = node.func
    if isinstance(called, ast.Name):
        return called.id == "open"
    if not isinstance(called, ast.Attribute):
        return False
    if isinstance(called.value, ast.Name) and called.value.id in ("os", "io"):
        return called.attr in OF_OS
    if called.attr != "open":
        return called.attr in METHODS
    first = node.args[0] if node.args else ast.Constant("")
    return isinstance(first, ast.Constant) and isinstance(first.value, str)


def calls(source: str) -> list[str]:
    """Calls that open a file by its path."""
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [f"line {node.lineno}: {ast.unparse(node)}" for node in found if opens(node)]


FILES = [
    path
    for package in ("spool", "ingest", "router")
    for path in sorted((ROOT / package).rglob("*.py"))
    if str(path.relative_to(ROOT)) not in HOMES
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_opened_elsewhere(path: Path) -> None:
    """All files of the spool are opened by spool.storage.disk or .ownership, which never wait for a pipe."""
    assert calls(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "open(p)",
        "p.open()",
        "p.open('rb')",
        "os.open(p, 0)",
        "p.read_text()",
        "p.read_bytes()",
        "io.FileIO(p)",
    ],
)
def test_each_way_of_opening_is_seen(source: str) -> None:
    """The test above finds it; it allows our own functions."""
    assert len(calls(source)) == 1
    assert not calls("open_to_read(p), read_bytes(p, 7), catalogue.open(info), lmdb.open(p)")
