"""A damaged header is mended from what is around it, and costs no message."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spool.format.segment_format import HEADER_BYTES
from spool.layout import SPARE
from tests.spool.fixture import SpoolFixture


def flip(path: Path, at: int) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))


@pytest.mark.parametrize("at", [0, 8, 20, 48, 56, 64, 380])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "crashed"])
def test_a_damaged_header_of_the_last_segment_costs_no_message(
    spool: SpoolFixture, at: int, *, clean: bool
) -> None:
    """One bad byte in the last header: it is rewritten, every message is kept, and no number is reused.

    If the check is intact, it proves the restored header, and the log goes on unchanged.
    """
    sent = spool.fill(40)
    spool.step()
    path = spool.last_path()
    if clean:
        spool.stop()
    else:
        spool.crash()
    kept = path.read_bytes()[:HEADER_BYTES]
    flip(path, at)
    spool.open()
    evidence = (spool.layout.quarantine / f"{path.name}.header").read_bytes()
    assert evidence != kept
    assert len(evidence) == HEADER_BYTES
    assert spool.records() == list(enumerate(sent))
    more = spool.fill(2)
    base = 1 << 32 if at == 380 and not clean else len(sent)
    assert spool.records() == [*enumerate(sent), *enumerate(more, base)]
    assert int(spool.writer.tail[4]) == len(sent) + len(more)


def test_a_damaged_header_of_the_only_segment_is_mended_too(spool: SpoolFixture) -> None:
    """The first segment begins at 0 with nothing before it: its header is known."""
    sent = spool.fill(3)
    spool.step()
    spool.crash()
    flip(spool.layout.segment(0), 60)
    spool.open()
    assert spool.records() == list(enumerate(sent))


@pytest.mark.parametrize("frames", [True, False], ids=["frames", "garbage"])
def test_a_damaged_header_with_no_segment_around_it(spool: SpoolFixture, *, frames: bool) -> None:
    """The header is rebuilt from the frames; a file without frames goes to quarantine."""
    sent = spool.fill(40)
    spool.step()
    spool.crash()
    shutil.rmtree(spool.layout.index)
    paths = [spool.layout.segment(*pair) for pair in spool.layout.list_segments()]
    last, first = paths[-1], int(paths[-1].stem)
    for path in paths[:-1]:
        path.unlink()
    data = bytes(HEADER_BYTES) + last.read_bytes()[HEADER_BYTES:] if frames else b"garbage" * 1000
    last.write_bytes(data)
    spool.open()
    more = spool.fill(1)
    spool.step()
    if frames:
        assert spool.records() == [*enumerate(sent[first:], first), *enumerate(more, 1 << 32)]
    else:
        assert (spool.layout.quarantine / last.name).read_bytes() == data
        assert len(spool.records()) == 3


@pytest.mark.parametrize("at", [0, 60, 380])
def test_a_damaged_header_in_the_middle_costs_no_message(spool: SpoolFixture, at: int) -> None:
    """A sealed segment's header is rewritten as well, even if the segment before it is gone."""
    sent = spool.fill(120)
    for _ in range(5):
        spool.step()
    paths = [spool.layout.segment(*pair) for pair in spool.layout.list_segments()]
    spool.crash()
    flip(paths[1], at)
    spool.open()
    assert spool.records() == list(enumerate(sent))
    spool.crash()
    paths[1].unlink()
    flip(paths[2], at)
    spool.open()
    more = spool.fill(2)
    spool.step()
    assert spool.synced == len(sent + more)
    gone = range(int(paths[1].stem), int(paths[2].stem))
    assert spool.records() == [record for record in enumerate(sent + more) if record[0] not in gone]
    assert int(spool.writer.tail[4]) == len(sent + more)


def test_a_spare_with_messages_behind_a_torn_header_is_set_aside(spool: SpoolFixture) -> None:
    """Frames behind a header that does not verify are not overwritten: they go to quarantine."""
    spool.fill(2)
    path = spool.last_path()
    assert path.suffix == SPARE
    spool.crash()
    flip(path, 70)
    spool.open()
    assert (spool.layout.quarantine / path.name).exists()
    spool.fill(2)
    assert len(spool.records()) == 6
