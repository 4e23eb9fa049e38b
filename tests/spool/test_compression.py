"""One block of zstd: what went in comes out, and what is damaged is no more than that."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.compression import MAGIC, compress, decompress

PLAIN = b"some messages " * 300


@given(st.binary(max_size=5000))
def test_what_went_in_comes_out(data: bytes) -> None:
    """And under no other length."""
    packed = compress(data)
    assert packed.startswith(MAGIC)
    assert decompress(packed, len(data)) == data
    assert decompress(packed, len(data) + 1) is None


@given(st.data())
def test_damage_is_seen(data: st.DataObject) -> None:
    """Any byte changed, or the end cut off: None, and no error."""
    packed = bytearray(compress(PLAIN))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    # What nothing covers, such as how large a window may be, says nothing about what is inside.
    assert decompress(bytes(packed), len(PLAIN)) in (None, PLAIN)
    assert decompress(compress(PLAIN)[: data.draw(st.integers(0, len(packed) - 5))], len(PLAIN)) is None


@pytest.mark.parametrize("size", [1 << 33, 1 << 60])
def test_a_frame_that_claims_to_hold_more_takes_no_memory(size: int) -> None:
    """How much it holds stands in eight bytes that nothing checks."""
    claim = MAGIC + bytes([0b11100100]) + struct.pack("<Q", size)
    assert decompress(claim + compress(PLAIN)[7:], len(PLAIN)) is None
