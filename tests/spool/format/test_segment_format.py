"""The bytes of headers and footers: they are read back as written, and no other bytes pass for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.errors import BadSpool, UnknownVersion
from spool.format import segment_format as form
from spool.format.wire import REASONS
from spool.native.digest import digest
from tests.spool import plain

u64 = st.integers(0, (1 << 64) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
u32 = st.integers(0, (1 << 32) - 1)
uuids = st.binary(min_size=16, max_size=16)
headers = st.fixed_dictionaries(
    {
        "spool": uuids,
        "boot": uuids,
        "number": u64,
        "first_sequence": i64,
        "previous": u64,
        "created_ns": u64,
        "stored": u64,
        "burst": u64,
        "discarded": st.lists(u64, min_size=REASONS, max_size=REASONS),
    }
)
OWN = form.decode_header(form.encode_header(first_sequence=7, secret=b"s" * 16), "own")
OTHERS = [
    form.decode_header(form.encode_header(**fields), "other")
    for fields in (
        {"first_sequence": 8, "secret": b"s" * 16},
        {"first_sequence": 7, "secret": b"t" * 16},
        {"first_sequence": 7, "version": 1},
    )
]
"""Headers of another segment of the spool, of one of another spool, and of version 1."""
marks = st.lists(st.tuples(u64, u64, u64), max_size=5)
sum_rows = st.lists(st.tuples(u64, u32, u32), max_size=5)
topic_rows = st.lists(st.tuples(st.binary(min_size=1, max_size=300), u64, i64, i64), max_size=5)
footers = st.fixed_dictionaries(
    dict.fromkeys(
        ["end", "count", "next_sequence", "digest", "burst", "first_received_ns", "last_received_ns"], u64
    )
    | {"first_timestamp": i64, "last_timestamp": i64}
    | {"discarded": st.lists(u64, min_size=REASONS, max_size=REASONS)}
)


def test_sizes_are_those_of_the_specification() -> None:
    """The records take the bytes that the module's text says, so that fields are where it says."""
    assert form.HEADER.itemsize == form.HEADER_BYTES == 384
    assert form.HEAD.itemsize == form.HEAD_BYTES == 64
    assert form.HEADER.fields is not None
    assert form.HEAD.fields is not None
    offsets = {name: form.HEADER.fields[name][1] for name in ("first_sequence", "discarded", "check")}
    assert offsets == {"first_sequence": 56, "discarded": 96, "check": 376}
    assert form.HEAD.fields["first_sequence"][1] == 32
    assert form.HEAD.fields["previous"][1] == 56


@given(headers)
def test_headers_round_trip(fields: dict[str, object]) -> None:
    """A header reads the same as it was written, in this package and in the independent reader."""
    data = form.encode_header(**fields)
    record = form.decode_header(data + b"frames", "x")
    parsed = plain.read_segment(data + bytes(64)).header
    for name, value in fields.items():
        found = record[name]
        assert (bytes(found) if isinstance(value, bytes) else found.tolist()) == value
        assert parsed[name] == value


@given(headers, st.integers(0, 383), st.integers(1, 255))
def test_a_header_with_any_byte_changed_is_refused(fields: dict[str, object], at: int, flip: int) -> None:
    """Damage is distinguished from a later version, also when it hits the version."""
    data = bytearray(form.encode_header(**fields))
    data[at] ^= flip
    with pytest.raises(BadSpool) as caught:
        form.decode_header(bytes(data), "here.seg")
    assert not isinstance(caught.value, UnknownVersion)
    assert "here.seg" in str(caught.value)


@given(headers, st.integers(0, 383))
def test_a_short_header_is_refused(fields: dict[str, object], length: int) -> None:
    """A file cut inside its header is no segment."""
    with pytest.raises(BadSpool):
        form.decode_header(form.encode_header(**fields)[:length], "x")


@given(headers, st.integers(form.VERSION + 1, (1 << 32) - 1))
def test_a_later_version_is_refused_by_name(fields: dict[str, object], version: int) -> None:
    """A whole header of a later release is UnknownVersion, and the message says which."""
    data = np.frombuffer(form.encode_header(**fields), form.HEADER).copy()
    data["version"] = version
    data["check"] = digest(data.tobytes()[:-8])
    with pytest.raises(UnknownVersion, match=str(version)):
        form.decode_header(data.tobytes(), "x")


@given(footers, marks, topic_rows, sum_rows)
def test_footers_round_trip(
    fields: dict[str, object],
    rows: list[tuple[int, int, int]],
    topics: list[tuple[bytes, int, int, int]],
    sums: list[tuple[int, int, int]],
) -> None:
    """A footer reads the same as it was written, in this package and in the independent reader."""
    data = form.encode_footer(OWN, fields, np.array(rows, form.MARK), topics, np.array(sums, form.SUM))
    assert form.footer_bytes(data) == form.footer_bytes(data[-24:]) == len(data)
    decoded = form.decode_footer(data, OWN)
    assert decoded is not None
    record, found_marks, found_topics, found_sums = decoded
    assert {name: record[name].tolist() for name in fields} == fields
    assert found_marks.tolist() == rows
    assert found_topics == topics
    assert found_sums.tolist() == sums
    segment = OWN.tobytes() + data
    parsed = plain.read_segment(segment).footer
    assert parsed is not None
    assert {name: parsed[name] for name in fields} == fields
    assert (parsed["marks"], parsed["topics"], parsed["sums"]) == (rows, topics, sums)


@given(footers, topic_rows, st.data())
def test_a_footer_that_is_not_the_segments_own_is_none(
    fields: dict[str, object], topics: list[tuple[bytes, int, int, int]], data: st.DataObject
) -> None:
    """A damaged footer is not believed, nor one that was cut, nor one with the key of another segment."""
    whole = form.encode_footer(OWN, fields, np.array([], form.MARK), topics, np.ones(2, form.SUM))
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    assert form.decode_footer(bytes(changed), OWN) is None
    assert form.decode_footer(whole[data.draw(st.integers(1, len(whole))) :], OWN) is None
    for header in OTHERS:
        assert form.decode_footer(whole, header) is None


@given(footers, st.integers(1, form.SUMS_SINCE - 1))
def test_a_segment_of_an_earlier_version_gets_no_sums(fields: dict[str, object], version: int) -> None:
    """Its release would not know its footer otherwise."""
    header = form.decode_header(form.encode_header(first_sequence=7, version=version), "earlier")
    empty: form.Record = np.array([], form.MARK)
    data = form.encode_footer(header, fields, empty, [], np.ones(2, form.SUM))
    footer = form.decode_footer(data, header)
    assert footer is not None
    assert (int(footer.fields["blocks"]), len(footer.sums)) == (0, 0)


@given(st.binary(max_size=400))
def test_other_bytes_are_no_footer(data: bytes) -> None:
    """A file's last bytes, whatever they are, are no footer unless they verify."""
    assert form.decode_footer(data, OWN) is None
