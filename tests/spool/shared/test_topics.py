"""The files of the Kafka input's topics: whole or nothing, whoever wrote them."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spool.errors import NotOurs
from spool.layout import Layout
from spool.shared.topics import (
    MOST_WANTED,
    read_partitions,
    read_wanted,
    version_of,
    wanted_path,
    write_partitions,
    write_wanted,
)

LONGEST = 249
"""Of a topic's name, in bytes."""
_NAMES = st.text("abcXYZ019._-", min_size=1, max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def shared(memory: Path) -> Path:
    """The place of a shared state."""
    return memory / "shared"


@pytest.fixture
def layout(memory: Path) -> Layout:
    """The layout of a spool with a folder for its marks."""
    found = Layout(memory)
    found.delivery.mkdir()
    return found


def long_names(count: int) -> list[bytes]:
    """Names of the greatest length."""
    return [b"%0*d" % (LONGEST, number) for number in range(count)]


def test_path() -> None:
    """The wanted topics are in a file beside the shared state."""
    assert wanted_path(Path("/run/bruce/abc.shared")) == Path("/run/bruce/abc.shared.topics")


@given(st.lists(_NAMES, max_size=20))
def test_wanted(names: list[str]) -> None:
    """Names that are written are read, in their order; the last ones replace those before."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as directory:
        shared = Path(directory) / "shared"
        write_wanted(shared, ["before"])
        write_wanted(shared, names)
        assert read_wanted(shared) == [name.encode() for name in names]
        assert wanted_path(shared).stat().st_mode & 0o777 == 0o600
        assert os.listdir(directory) == ["shared.topics"]


def test_most_wanted(shared: Path) -> None:
    """As many names as are wanted at most, of the greatest length, are read; more are left out."""
    names = long_names(MOST_WANTED + 5)
    write_wanted(shared, [name.decode() for name in names])
    assert read_wanted(shared) == names[:MOST_WANTED]


def test_no_wanted(shared: Path) -> None:
    """Without the file there are none, nor without its folder."""
    assert read_wanted(shared) == []
    assert read_wanted(shared / "deeper") == []


HOSTILE = [
    *(b"", b"\0", b"[", b'["a"', b"null", b"1", b"1.5", b"true", b'["a", 1]', b'["a", null]', b'[["a"]]'),
    *(b'{"a": 1}', b"\xff\xfe", b'["\\ud800"]', b"[" * 100_000, b'{"a":' * 100_000, b'["a"] ["b"]'),
]


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: ascii(data[:12]))
def test_damaged_wanted(shared: Path, data: bytes) -> None:
    """A damaged or hostile file has no names."""
    wanted_path(shared).write_bytes(data)
    assert read_wanted(shared) == []


def test_wanted_text(shared: Path) -> None:
    """A file with a text in the place of a list has no names."""
    wanted_path(shared).write_bytes(b'"orders"')
    assert read_wanted(shared) == []


def test_huge_wanted(shared: Path) -> None:
    """A file that is larger than any of ours has no names, and is not read whole."""
    with wanted_path(shared).open("wb") as file:
        file.write(b'["a", "')
        file.truncate(1 << 40)
    assert read_wanted(shared) == []
    wanted_path(shared).write_bytes(b'["' + b"a" * (5 << 20) + b'"]')
    assert read_wanted(shared) == []


def test_wanted_of_others(shared: Path) -> None:
    """A file that others may write is not believed, nor one in a folder where they may is made."""
    write_wanted(shared, ["a"])
    wanted_path(shared).chmod(0o666)
    assert read_wanted(shared) == []
    shared.parent.chmod(0o777)
    try:
        with pytest.raises(NotOurs):
            write_wanted(shared, ["a"])
    finally:
        shared.parent.chmod(0o700)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_wanted_is_no_file(shared: Path, kind: str) -> None:
    """Something else in the place of the file has no names, and does not keep us waiting."""
    place = wanted_path(shared)
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        (shared.parent / "real").write_bytes(b'["a"]')
        place.symlink_to("real")
    assert read_wanted(shared) == []


@given(st.dictionaries(_NAMES, st.integers(-200, 1 << 20), max_size=20))
def test_partitions(found: dict[str, int]) -> None:
    """Partitions and errors that are written are read."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as directory:
        layout = Layout(Path(directory))
        layout.delivery.mkdir()
        write_partitions(layout, {b"before": 1})
        write_partitions(layout, {name.encode(): count for name, count in found.items()})
        assert read_partitions(layout) == {name.encode(): count for name, count in found.items()}


def test_no_partitions(layout: Layout) -> None:
    """Without the note there are none, and no time of it."""
    assert (read_partitions(layout), version_of(layout)) == ({}, (0, 0))
    write_partitions(layout, {b"a": 1})
    assert version_of(layout) > (0, 0)
    layout.topics.unlink()
    assert (read_partitions(layout), version_of(layout)) == ({}, (0, 0))


@pytest.mark.parametrize(
    "data",
    [
        *(one for one in HOSTILE if one != b'{"a": 1}'),
        *(
            b"[]",
            b'"orders"',
            b'{"a": "1"}',
            b'{"a": null}',
            b'{"a": 1.0}',
            b'{"a": [1]}',
            b'{"a": 1, "b": {}}',
        ),
        *(b'{"a": 1048577}', b'{"a": -1048577}', b'{"a": 1%s}' % (b"0" * 1000), b'{"a": NaN}'),
    ],
    ids=lambda data: ascii(data[:12]),
)
def test_damaged_partitions(layout: Layout, data: bytes) -> None:
    """A damaged or hostile note has no topics at all."""
    layout.topics.write_bytes(data)
    assert read_partitions(layout) == {}


def test_huge_number(layout: Layout) -> None:
    """A number of too many digits to be read is damage as well."""
    layout.topics.write_bytes(b'{"a": 1' + b"0" * 100_000 + b"}")
    assert read_partitions(layout) == {}


def test_huge_partitions(layout: Layout) -> None:
    """A note that is larger than any of ours has no topics, and is not read whole."""
    with layout.topics.open("wb") as file:
        file.truncate(1 << 40)
    assert read_partitions(layout) == {}


@pytest.mark.parametrize("most", [MOST_WANTED, 15_000])
def test_most_partitions(layout: Layout, most: int) -> None:
    """As many topics as are wanted at most, with the longest names, are read."""
    write_partitions(layout, dict.fromkeys(long_names(most), -129))
    assert len(read_partitions(layout)) == most


@given(_JSON)
def test_any_document(document: object) -> None:
    """Any document at all is read as names and numbers, or as nothing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="bruce-test-") as directory:
        layout = Layout(Path(directory))
        layout.delivery.mkdir()
        data = json.dumps(document).encode()
        layout.topics.write_bytes(data)
        wanted_path(Path(directory) / "shared").write_bytes(data)
        assert all(isinstance(count, int) for count in read_partitions(layout).values())
        assert all(isinstance(name, bytes) for name in read_wanted(Path(directory) / "shared"))
