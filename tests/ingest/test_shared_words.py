"""No compiled loop of intake and keeper reads a word of another process or thread by a plain load."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ingest
from spool.log import group_commit

SHARED = {
    *("STATE", "BEAT", "DONE", "CLOSED", "LEAVE", "BLOCKED", "FAULTS"),
    *("KIND", "SIDE", "OFFERED", "TAKEN", "_USED", "_BURST"),
    *("ARMED", "FIRST", "OPENED"),
    *("_PAUSE", "_PAUSED", "_SUSPECT", "_QUOTAS", "_QUOTA_TOPICS", "_KEEPER_WAITS"),
    *("_WRITTEN", "_WRITTEN_SEQUENCE", "_SYNCED", "_SYNCED_SEQUENCE", "_SYNC_WANTED"),
}
"""Names of those words, as offsets or fields that have their address (spool.native.memory)."""
BARE = {"handoff", "row"}
"""Addresses of such words themselves: the state of the handoff, a row of quotas."""
LOOPS = {"kernel", "subkernel"}
PLAIN = {"load_i64", "load_i32", "load_u32", "store_i64"}
FILES = [*sorted(Path(ingest.__file__).parent.rglob("*.py")), Path(group_commit.__file__)]
ROOT = Path(ingest.__file__).parents[1]


def offences(source: str) -> list[str]:
    """Plain loads and stores of shared words in the compiled loops of a module."""
    found = []
    for loop in ast.walk(ast.parse(source)):
        if not isinstance(loop, ast.FunctionDef) or not LOOPS & set(map(ast.unparse, loop.decorator_list)):
            continue
        for node in ast.walk(loop):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in PLAIN:
                continue
            names = {one.id for one in ast.walk(node.args[0]) if isinstance(one, ast.Name)}
            # A nested expression has a load of its own.
            names -= {
                one.id
                for inner in ast.walk(node.args[0])
                if isinstance(inner, ast.Call)
                for one in ast.walk(inner)
                if isinstance(one, ast.Name)
            }
            if names & SHARED or ast.unparse(node.args[0]) in BARE:
                found.append(f"{loop.name}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_shared_words_are_acquired(path: Path) -> None:
    """Each is read by load_acquire, and stored by publish_i64 or exchange."""
    assert offences(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("decorator", sorted(LOOPS))
def test_a_plain_load_is_found(decorator: str) -> None:
    """The check sees one."""
    loop = "def look(handoff):\n    return load_i64(handoff + BLOCKED) + load_acquire(handoff + BEAT)\n"
    assert offences(f"@{decorator}\n{loop}") == ["look: load_i64(handoff + BLOCKED)"]
