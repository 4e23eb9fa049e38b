"""Files that would crash a process that opens them with LMDB are refused before; sound ones pass."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from spool.index.environment import open_surely
from spool.index.soundness import is_harmless, is_sound

PAGE = os.sysconf("SC_PAGE_SIZE")
TABLES = (b"one", b"two")


def churn(directory: Path, seed: int, commits: int, looks: Callable[[], None]) -> None:
    """Commit random rows, some with pages of their own; `looks` is called after each commit."""
    chance = random.Random(seed)
    env = lmdb.open(str(directory), map_size=1 << 28, max_dbs=2, sync=False)
    tables = [env.open_db(name) for name in TABLES]
    for _ in range(commits):
        with env.begin(write=True) as txn:
            for _ in range(chance.choice((1, 5, 100))):
                table, key = chance.choice(tables), b"%d" % chance.randrange(500)
                if chance.random() < 0.55:
                    txn.put(key, bytes(chance.choice((10, 500, 2016, 6000))), db=table)
                else:
                    txn.delete(key, db=table)
        looks()
    env.close()


def outlives(directory: Path) -> bool:
    """Whether a process that opens, reads and writes everything survives."""
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            env = lmdb.open(str(directory), map_size=1 << 28, max_dbs=2)
            for name in TABLES:
                table = env.open_db(name)
                with env.begin(write=True) as txn, txn.cursor(table) as cursor:
                    for key, _ in list(cursor):
                        txn.put(key, b"another", db=table)
        except lmdb.Error:
            pass
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("seed", range(3))
def test_what_lmdb_writes_is_sound(memory: Path, seed: int) -> None:
    """After every commit of any kind: no false alarm, which would cost the marks."""
    path = memory / "data.mdb"

    def look() -> None:
        assert is_sound(path)

    churn(memory, seed, 60, look)


def broken(data: bytes, chance: random.Random) -> bytes:
    """The file, cut short or with pages lost."""
    pages = len(data) // PAGE
    if chance.random() < 0.5:
        return data[: chance.randrange(1, len(data))]
    changed = bytearray(data)
    for _ in range(chance.choice((1, 3))):
        at = PAGE * chance.randrange(2, pages)
        changed[at : at + PAGE] = bytes(PAGE)
    return bytes(changed)


def test_whatever_passes_ends_nobody(memory: Path) -> None:
    """With any cut or lost pages, a file is refused, or LMDB survives it. Most are refused."""
    churn(memory / "good", 1, 40, lambda: None)
    data, told = (memory / "good" / "data.mdb").read_bytes(), 0
    for seed in range(60):
        directory = memory / str(seed)
        directory.mkdir()
        (directory / "data.mdb").write_bytes(broken(data, random.Random(seed)))
        if is_harmless(directory):
            assert outlives(directory), seed
        else:
            told += 1
        shutil.rmtree(directory)
    assert told > 30


def churn_marks(directory: Path, commits: int) -> list[bytes]:
    """The file of the marks after each of these commits of random rows."""
    chance, states = random.Random(1), []
    env, tables = open_surely(directory)
    for _ in range(commits):
        with env.begin(write=True) as txn:
            for _ in range(chance.choice((5, 100, 400))):
                key, table = b"%d" % chance.randrange(800), tables[chance.choice((b"mark", b"discard"))]
                if chance.random() < 0.55:
                    txn.put(key, bytes(chance.choice((10, 500, 2016))), db=table)
                else:
                    txn.delete(key, db=table)
        states.append((directory / "data.mdb").read_bytes())
    env.close()
    return states


def with_lost_writes(states: list[bytes], chance: random.Random) -> bytes:
    """The last state, with some pages of an earlier one."""
    data, before = bytearray(states[-1]), chance.choice(states[-5:-1])
    places = range(2 * PAGE, min(len(data), len(before)), PAGE)
    changed = [at for at in places if data[at : at + PAGE] != before[at : at + PAGE]]
    for at in chance.sample(changed, chance.choice((1, 3))):
        data[at : at + PAGE] = before[at : at + PAGE]
    return bytes(data)


def rewrites(directory: Path) -> bool:
    """Whether a deliverer that opens the marks, and changes every row, comes to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            env, tables = open_surely(directory)
            for table in tables.values():
                with env.begin(write=True) as txn, txn.cursor(table) as cursor:
                    for key, _ in list(cursor):
                        txn.put(key, b"another", db=table)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def test_pages_of_an_earlier_commit_end_no_deliverer(memory: Path) -> None:
    """The disk lost writes of the marks: the deliverer sets them aside, or they take every change.

    Marks that lost none are never set aside.
    """
    states, aside = churn_marks(memory / "good", 40), 0
    assert rewrites(memory / "good")
    assert not (memory / "good" / "data.mdb.damaged").exists()
    for seed in range(40):
        directory = memory / str(seed)
        directory.mkdir()
        (directory / "data.mdb").write_bytes(with_lost_writes(states, random.Random(seed)))
        assert rewrites(directory), seed
        aside += (directory / "data.mdb.damaged").exists()
        shutil.rmtree(directory)
    assert aside > 20


def cut(path: Path) -> None:
    """Leave the first two pages."""
    os.truncate(path, 2 * PAGE)
