"""The shared page: what the processes of a daemon tell each other, word by word."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool import history
from spool.page import (
    BROKER_ROWS,
    BROKER_WORDS,
    MOST_QUOTAS,
    QUOTA_ROW,
    TEXT_BYTES,
    WORDS,
    WORKER_WORDS,
    Field,
    Page,
    other_format,
    place,
    read_page,
    read_text,
    split_place,
)
from spool.runtime import page_path


@given(st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 32) - 1).map(lambda n: n * 8))
def test_places_round_trip(number: int, position: int) -> None:
    """A place is one word that holds segment number and offset, and a page gives both back."""
    assert split_place(place(number, position)) == (number, position)
    assert -(1 << 63) <= place(number, position) < 1 << 63


@given(*[st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 29).map(lambda n: n * 8))] * 2)
def test_places_are_in_the_order_of_the_log(one: tuple[int, int], other: tuple[int, int]) -> None:
    """Comparing places compares positions in the log."""
    assert (place(*one) < place(*other)) == (one < other)


def test_everybody_maps_the_same_words(tmp_path: Path) -> None:
    """What one process stores, another reads, and who only looks reads it too."""
    one, other = Page(tmp_path / "page"), Page(tmp_path / "page")
    one.words[Field.WRITTEN] = place(7, 4096)
    assert other.place(Field.WRITTEN) == (7, 4096)
    looked = read_page(tmp_path / "page")
    assert looked is not None
    assert looked[Field.WRITTEN] == place(7, 4096)
    assert other.address_of(Field.WRITTEN) == other.address + 64


@pytest.mark.parametrize("data", [None, b"", bytes(8 * WORDS), b"x" * 100])
def test_what_is_no_page_is_none(tmp_path: Path, data: bytes | None) -> None:
    """A missing file, or another one, is no page."""
    if data is not None:
        (tmp_path / "page").write_bytes(data)
    assert read_page(tmp_path / "page") is None


def test_each_writer_has_cache_lines_of_its_own() -> None:
    """No two processes store to one line: the appender's word is not slowed by the keeper's."""
    writers = {
        "supervisor": [Field.MAGIC, Field.STARTED_NS, Field.DIRECTORY],
        "ingest": [Field.WRITTEN, Field.WRITTEN_SEQUENCE],
        "keeper": [
            *(Field.SYNCED, Field.SYNCED_SEQUENCE, Field.SPARE, Field.FULL, Field.KEEPER_WAITS),
            *(Field.FULL_SINCE_NS, Field.WHEN_FULL, Field.EVICT),
        ],
        "delivery": [Field.FLOOR],
    }
    lines = {name: {field // 8 for field in fields} for name, fields in writers.items()}
    taken = [line for found in lines.values() for line in found]
    assert len(taken) == len(set(taken))
    assert Field.BROKERS + 4 * (BROKER_ROWS + 1) <= WORDS


PLANTED: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link": lambda path: path.symlink_to("/dev/zero"),
    "another user's": lambda path: (path.write_bytes(forged(path)), os.chown(path, 65534, 65534)),
    "open to others": lambda path: (path.write_bytes(forged(path)), path.chmod(0o666)),
    "of two names": lambda path: (path.write_bytes(forged(path)), os.link(path, path.with_name("name"))),
    "cut": lambda path: path.write_bytes(forged(path)[:-8]),
}


def forged(path: Path) -> bytes:
    """A page that says that much is delivered."""
    page = Page(path.with_name("forged"))
    page.words[Field.FLOOR] = 1 << 40
    return page.words.tobytes()


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_page_is_neither_read_nor_mapped(tmp_path: Path, kind: str) -> None:
    """Lookers see no page, and do not wait for one; who owns the spool puts a page of its own there."""
    if os.geteuid():
        pytest.skip("giving a file to another user needs root")
    path = tmp_path / "page"
    PLANTED[kind](path)
    assert read_page(path) is None
    assert other_format(path) is None
    page = Page(path)
    assert page.words[Field.FLOOR] == 0
    status = path.lstat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_nlink) == (0o640, os.geteuid(), 1)


def test_pages_differ_by_spool_and_boot(tmp_path: Path) -> None:
    """Two spools, or two boots, never share a page."""
    paths = {page_path(tmp_path, s, b) for s in (b"a" * 16, b"b" * 16) for b in (b"a" * 16, b"b" * 16)}
    assert len(paths) == 4
    assert np.dtype(np.int64).itemsize * WORDS == 98304


def test_no_two_fields_overlap() -> None:
    """Rows and texts end before what comes behind them, and the last of them before the page does."""
    text = 2 + TEXT_BYTES // 8
    words = {
        Field.WORKERS: 8 * WORKER_WORDS,
        Field.TROUBLE: text,
        Field.QUOTA_ROWS: MOST_QUOTAS * QUOTA_ROW,
        Field.BROKERS: 1 + BROKER_ROWS * BROKER_WORDS,
        Field.LAST_TROUBLE: text,
        Field.HISTORY: 1 + history.ROWS * history.WORDS,
    }
    fields = sorted(Field)
    for field, behind in zip(fields, [*fields[1:], WORDS], strict=True):
        assert field + words.get(field, 1) <= behind, field.name


@given(st.text(max_size=TEXT_BYTES + 50))
def test_texts_round_trip(text: str) -> None:
    """A text is read back, as far as there is room for whole characters, whatever stood there before."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        page = Page(Path(directory) / "page")
        page.write_text(Field.TROUBLE, "before" * 40)
        page.write_text(Field.TROUBLE, text)
        expected = text.encode()[:TEXT_BYTES].decode("utf-8", "ignore")
        assert read_text(page.words, Field.TROUBLE) == expected


@pytest.mark.parametrize("data", [b"", b"brucepg1" + bytes(8184)])
def test_the_page_of_another_release_is_made_anew(tmp_path: Path, data: bytes) -> None:
    """A daemon that is upgraded without a reboot finds a smaller page: no store goes behind its end."""
    (tmp_path / "page").write_bytes(data)
    page = Page(tmp_path / "page")
    page.words[WORDS - 1] = 7
    assert not page.words[1 : WORDS - 1].any()
    assert read_page(tmp_path / "page") is not None


@pytest.mark.parametrize("word", [0, 1, 2, 3])
def test_a_text_that_is_being_written_is_none(tmp_path: Path, word: int) -> None:
    """With one word of it not stored yet, a reader is told nothing; and the words end within the page."""
    page = Page(tmp_path / "page")
    assert read_text(page.words, Field.TROUBLE) == ""
    page.write_text(Field.TROUBLE, "0123456789")
    page.words[Field.TROUBLE + word] ^= 0x55
    assert read_text(page.words, Field.TROUBLE) is None
    assert Field.TROUBLE + 2 + TEXT_BYTES // 8 <= WORDS


def test_a_text_with_a_name_that_is_no_text(tmp_path: Path) -> None:
    """A path of any bytes stops nobody from saying what is wrong with it."""
    page = Page(tmp_path / "page")
    page.write_text(Field.TROUBLE, f"{os.fsdecode(b'/spool' + bytes([255]))} is full")
    words = read_page(tmp_path / "page")
    assert words is not None
    assert read_text(words, Field.TROUBLE) == "/spool\\udcff is full"
