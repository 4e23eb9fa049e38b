"""Files of a job on Spark: read as they were written, and not believed when damaged, foreign or newer."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.errors import BadSpool, UnknownVersion
from spool.layout import Layout
from spool.marks.task_files import (
    SUFFIX,
    VERSION,
    CountsFile,
    TransactionalTasks,
    decode_counts,
    encode_counts,
    read_counts,
    read_transactional_tasks,
    remove_transactional_tasks,
    write_counts,
    write_transactional_tasks,
)
from spool.native.digest import digest

SPOOL = bytes(range(16))
HISTORIES = {b"orders": [(0, 3), (1 << 40, 4)], b"\xff": [(7, 1)]}
UNKNOWN = TransactionalTasks(0, 0)
histories = st.dictionaries(
    st.binary(min_size=1, max_size=300),
    st.lists(st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 32) - 1)), min_size=1, max_size=4),
    max_size=5,
)


def signed(body: bytes) -> bytes:
    """A file with this content, and the right check behind it."""
    return body + digest(body).to_bytes(8, "little")


@given(st.binary(min_size=16, max_size=16), histories)
def test_counts_are_read_as_they_were_written(
    spool: bytes, given: dict[bytes, list[tuple[int, int]]]
) -> None:
    """Of any topics, each with its history in order."""
    assert decode_counts(encode_counts(spool, given), "x") == CountsFile(spool, given)


def test_the_bytes_are_those_of_the_docstring() -> None:
    """A later release reads the files of this one: head, a row for each count, and the check."""
    rows = [(0, 3, b"orders"), (1 << 40, 4, b"orders"), (7, 1, b"\xff")]
    body = b"brucecnt" + struct.pack("<II", 1, len(rows)) + SPOOL
    for first, partitions, topic in rows:
        body += struct.pack("<QIH", first, partitions, len(topic)) + topic
    assert encode_counts(SPOOL, HISTORIES) == signed(body)


def test_a_counts_file_that_is_cut_or_flipped() -> None:
    """At any length, and with any bit: no count of it is believed, and the sentence names the file."""
    whole = encode_counts(SPOOL, HISTORIES)
    for end in range(len(whole)):
        with pytest.raises(BadSpool, match=r"the file is .*; remove it"):
            decode_counts(whole[:end], "the file")
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadSpool, match=r"^the file "):
            decode_counts(bytes(flipped), "the file")


def test_counts_of_a_newer_release() -> None:
    """They are no damage: the sentence asks for a newer bruce."""
    newer = signed(b"brucecnt" + (VERSION + 1).to_bytes(4, "little") + encode_counts(SPOOL, {})[12:-8])
    with pytest.raises(UnknownVersion, match=f"has version {VERSION + 1}.*use a newer one"):
        decode_counts(newer, "x")


def test_the_name_says_what_the_file_is(tmp_path: Path) -> None:
    """The importer finds it by its suffix, and nothing half-made is beside it."""
    path = write_counts(tmp_path, "job", SPOOL, HISTORIES)
    assert [one.name for one in tmp_path.iterdir()] == [path.name] == [f"job{SUFFIX}"]
    assert read_counts(path) == CountsFile(SPOOL, HISTORIES)


def test_tasks_are_known_until_they_are_closed(tmp_path: Path) -> None:
    """From the file's first write to its removal; a second removal is no error."""
    layout = Layout(tmp_path)
    assert read_transactional_tasks(layout) is None
    for tasks in (TransactionalTasks(4, 1 << 50), TransactionalTasks(9, 2)):
        write_transactional_tasks(layout, tasks)
        assert read_transactional_tasks(layout) == tasks
    for _ in range(2):
        remove_transactional_tasks(layout)
        assert read_transactional_tasks(layout) is None


def test_tasks_that_cannot_be_read_are_there(tmp_path: Path) -> None:
    """Cut, flipped, newer, of another kind, or no file: some tasks are open, and their number is unknown."""
    layout = Layout(tmp_path)
    write_transactional_tasks(layout, TransactionalTasks(4, 7))
    whole = layout.transactional_tasks.read_bytes()
    assert whole == signed(struct.pack("<8sIIQ", b"brucelan", 1, 4, 7))
    spoiled = [whole[:end] for end in range(len(whole))]
    spoiled += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    spoiled += [
        signed(struct.pack("<8sIIQ", b"brucelan", 2, 4, 7)),
        signed(struct.pack("<8sIIQ", b"brucecnt", 1, 4, 7)),
    ]
    for data in spoiled:
        layout.transactional_tasks.write_bytes(data)
        assert read_transactional_tasks(layout) == UNKNOWN
    layout.transactional_tasks.unlink()
    layout.transactional_tasks.mkdir()
    assert read_transactional_tasks(layout) == UNKNOWN
