"""Columns of bytes, whatever part of an array they are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.source.binary import from_binary

VALUES = [b"a", None, b"", b"long" * 9, b"z"]


@pytest.mark.parametrize("first", range(5))
def test_of_a_slice(first: int) -> None:
    """Each row's bytes are where they are said to be; a null has none; text is its bytes."""
    for kind in (pa.binary(), pa.string()):
        column = pa.array(VALUES, pa.binary()).cast(kind).slice(first)
        data, at, lengths = from_binary(column)
        found = [data[start : start + length].tobytes() for start, length in zip(at, lengths, strict=True)]
        assert found == [value or b"" for value in VALUES[first:]]


def test_of_nothing() -> None:
    """No rows, and rows without a byte."""
    assert [len(one) for one in from_binary(pa.array([], pa.binary()))] == [0, 0, 0]
    assert [len(one) for one in from_binary(pa.array([None, b""], pa.binary()))] == [0, 2, 2]
