"""The digest: the same number from the library and from the wheel; rows that end with one; their sizes."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.errors import MissingPart
from spool.marks.discarded import KEY
from spool.native import digest as module
from spool.native.digest import (
    CHECK_BYTES,
    CHUNK_BYTES,
    CHUNK_MESSAGES,
    TOPIC_BYTES,
    UNTOLD,
    check,
    digest,
    digest_function,
    matches,
)
from spool.native.memory import call

SEEDS = st.integers(0, (1 << 64) - 1)
FUNCTION = digest_function()


@given(st.binary(max_size=600), SEEDS)
def test_loops_and_python_compute_the_same(data: bytes, seed: int) -> None:
    """The library's own function, called by address, gives the number of the wheel's interface."""
    memory = ctypes.create_string_buffer(data, len(data) + 1)
    signed = seed - (seed >> 63 << 64)
    found = call(FUNCTION, ctypes.addressof(memory), len(data), signed)
    assert found % (1 << 64) == digest(data, seed)


def test_it_is_xxh3() -> None:
    """A number of the specification: the digest of no bytes, without a seed."""
    assert digest(b"") == 0x2D06800538D394C2


def test_a_wheel_that_hides_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the library, and what to install."""
    monkeypatch.setattr(module, "ctypes", SimpleNamespace(CDLL=lambda _: SimpleNamespace()))
    with pytest.raises(MissingPart, match=r"does not export XXH3_64bits_withSeed; install the xxhash wheel"):
        digest_function.__wrapped__()


def test_the_library_is_opened_once() -> None:
    """The deliverer asks for the address with each batch of discards: to open it again would cost memory."""
    assert digest_function() is FUNCTION


@given(st.binary(max_size=20), st.binary(max_size=40), st.integers(0, 1 << 62), st.data())
def test_a_row_is_of_its_key_and_its_segment(
    key: bytes, value: bytes, identity: int, data: st.DataObject
) -> None:
    """A row under another key, of another segment, or with a bit that flipped, does not match."""
    row = value + check(key, value, identity)
    assert len(row) == len(value) + CHECK_BYTES
    assert matches(key, row, identity)
    assert not matches(key + b"x", row, identity)
    assert not matches(key, row, identity + 1)
    bit = data.draw(st.integers(0, 8 * len(row) - 1))
    flipped = bytearray(row)
    flipped[bit // 8] ^= 1 << bit % 8
    assert not matches(key, bytes(flipped), identity)


def test_rows_of_a_segment_without_a_header_are_believed() -> None:
    """While the disk cannot read the header, no row about the segment is taken for another's."""
    assert matches(b"key", b"value" + check(b"key", b"value", 7), UNTOLD)
    assert not matches(b"key", b"value" + check(b"key", b"value", 7), 8)


def test_lmdb_fits_two_chunks_in_a_page(tmp_path: Path) -> None:
    """With the longest key that a chunk has: none takes a page alone, or pages beside the tree."""
    assert CHUNK_MESSAGES == 8 * CHUNK_BYTES
    with lmdb.open(str(tmp_path), map_size=4 << 20) as env:
        with env.begin(write=True) as txn:
            for chunk in range(100):
                txn.put(KEY.pack(1, chunk, 1), bytes(CHUNK_BYTES + CHECK_BYTES), append=True)
        found = env.stat()
    assert (found["entries"], found["overflow_pages"]) == (100, 0)
    assert found["leaf_pages"] <= 51


def test_a_key_with_a_topic_is_one_that_lmdb_takes(tmp_path: Path) -> None:
    """Reason, slot and name together are within its limit."""
    with lmdb.open(str(tmp_path)) as env:
        assert env.max_key_size() >= 2 + 1 + TOPIC_BYTES
