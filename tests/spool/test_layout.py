"""File names: built and parsed in one place, in the order of the messages."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyfakefs.fake_filesystem import FakeFilesystem

from spool.layout import SEGMENT, SENT, SETTLED_NS, SPARE, Layout, SegmentNames, parse_name, segment_name
from spool.storage.disk import keep, set_aside

sequences = st.integers(0, 10**20 - 1)
suffixes = st.sampled_from((SEGMENT, SENT, SPARE))


@given(sequences, suffixes)
def test_names_round_trip(sequence: int, suffix: str) -> None:
    """parse_name returns the arguments of segment_name."""
    assert parse_name(segment_name(sequence, suffix)) == (sequence, suffix)


@given(st.lists(st.tuples(sequences, suffixes)))
def test_names_sort_as_numbers_do(pairs: list[tuple[int, str]]) -> None:
    """The order of names is the order of messages."""
    names = sorted(segment_name(*pair) for pair in pairs)
    assert [parse_name(name)[0] for name in names if parse_name(name)] == sorted(n for n, _ in pairs)  # type: ignore[index]


@given(st.text(max_size=30))
def test_other_names_are_none(name: str) -> None:
    """A name that segment_name would not write is not a segment's."""
    parsed = parse_name(name)
    assert parsed is None or segment_name(*parsed) == name


def test_a_listing_passes_over_what_it_does_not_know(fs: FakeFilesystem) -> None:
    """Foreign files, half-made ones and names with other digits do not appear in a listing."""
    layout = Layout(Path("/spool"))
    for name in (
        segment_name(7),
        segment_name(3, SENT),
        segment_name(12, SPARE),
        segment_name(2, SPARE),
        segment_name(9) + ".tmp",
        "7.seg",
        "٣" * 20 + ".seg",
        "lost+found",
        ".seg",
    ):
        fs.create_file(layout.segments / name)
    assert layout.list_segments() == [(3, SENT), (7, SEGMENT)]
    assert layout.list_spares() == [2, 12]


def test_a_rename_during_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that a listing shows twice, or hides, is listed once, by its name since."""
    layout = Layout(tmp_path)
    layout.segments.mkdir()
    for number in range(3):
        layout.segment(number).touch()
    os.rename(layout.segment(0), layout.segment(0, SENT))
    real, torn = os.scandir, [["1", "2"], ["0", "0.sent", "1", "2"], None, None]

    @contextmanager
    def scandir(path: Path) -> Iterator[list[SimpleNamespace]]:
        names = torn.pop(0)
        with real(path) as entries:
            found = list(entries)
        if names is None:
            yield found
        else:
            pairs = [name.partition(".") for name in names]
            yield [SimpleNamespace(name=segment_name(int(n), SENT if s else SEGMENT)) for n, _, s in pairs]

    monkeypatch.setattr(os, "scandir", scandir)
    assert layout.list_segments() == [(0, SENT), (1, SEGMENT), (2, SEGMENT)]


def test_a_missing_directory_lists_nothing(fs: FakeFilesystem) -> None:
    """No directory is an empty spool, not an error."""
    assert Layout(Path("/nowhere")).list_segments() == []
    assert Layout(Path("/nowhere")).list_spares() == []


def test_everything_lies_inside_the_directory() -> None:
    """Each path of a spool is below its directory, so that a copy of the directory is a copy of the spool."""
    layout = Layout(Path("/a/spool"))
    names = ["identity", "lock", "ledger", "segments", "index", "delivery", "owner", "quarantine"]
    paths = [getattr(layout, name) for name in names]
    assert all(path.is_relative_to("/a/spool") for path in paths)
    assert len(set(paths)) == len(paths)


def test_quarantine_keeps_names(fs: FakeFilesystem) -> None:
    """Moved and copied files are found in quarantine under their former names."""
    layout = Layout(Path("/spool"))
    fs.create_file(layout.segment(5), contents="damaged")
    fs.create_dir(layout.quarantine)
    set_aside(layout, layout.segment(5), "a test")
    keep(layout, "burst-7.poison", [b"bytes"])
    assert (layout.quarantine / segment_name(5)).read_text() == "damaged"
    assert (layout.quarantine / "burst-7.poison").read_bytes() == b"bytes"
    assert not layout.segment(5).exists()


def test_evidence_without_room_is_not_an_error(fs: FakeFilesystem) -> None:
    """A quarantine that cannot be written to costs the evidence, and the work goes on."""
    layout = Layout(Path("/spool"))
    keep(layout, "burst-7.poison", [b"bytes"])
    assert not layout.quarantine.exists()


def test_names_are_looked_for_after_a_change_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However soon after a look one is made, renamed or removed; a directory at rest is not read again."""
    layout, looks = Layout(tmp_path), []
    layout.segments.mkdir()
    names, whole = SegmentNames(layout), Layout.list_segments

    def count(self: Layout) -> list[tuple[int, str]]:
        looks.append(1)
        return whole(self)

    monkeypatch.setattr(Layout, "list_segments", count)
    for change in (
        lambda: layout.segment(1).touch(),
        lambda: layout.segment(5).touch(),
        lambda: layout.segment(1).rename(layout.segment(1, SENT)),
        lambda: layout.segment(1, SENT).unlink(),
    ):
        change()
        assert names.look() == whole(layout)
    assert names.look() is names.look()
    assert len(looks) == 6
    long_ago = time.time_ns() - SETTLED_NS - 10**9
    os.utime(layout.segments, ns=(long_ago, long_ago))
    assert names.look() is names.look()
    assert len(looks) == 7
    layout.segment(9).touch()
    assert names.look() == whole(layout) == [(5, SEGMENT), (9, SEGMENT)]
