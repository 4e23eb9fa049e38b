"""Packed segments: every reader sees the original content, and damage in one costs a block."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spool.errors import BadSpool, UnknownVersion
from spool.format import packed
from spool.format.packed import ZSTD, compress, decompress, is_packed, open_plain, pack, unpacked_bytes
from spool.format.scan import read_header
from spool.format.segment_format import FOOTER, FOOTER_END, FOOTER_MAGIC, FOOTER_TAIL, HEADER_BYTES
from spool.fsck.check import Check
from spool.index.log_end import read_footer
from spool.index.segment_list import SegmentList
from spool.native.digest import digest
from spool.storage.disk import read_at
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import messages, pack_file

GOLDEN = Path(__file__).parents[2] / "golden"


SMALL = 1024
"""Bytes of a block: several blocks in each segment."""


def plain_bytes(path: Path) -> bytes:
    """The bytes that readers see."""
    fd = open_plain(path)
    with os.fdopen(fd, "rb") as file:
        return file.read()


def made(directory: Path, **more: int) -> tuple[SpoolFixture, list[bytes], list[Path]]:
    """A spool of several segments, the first two packed; its messages, and these two."""
    spool = SpoolFixture(directory, **more)
    sent = spool.fill(60)
    spool.step()
    spool.stop()
    paths = [spool.layout.segment(*pair) for pair in spool.layout.list_segments()[:2]]
    for path in paths:
        pack_file(path, SMALL)
    return spool, sent, paths


def test_it_reads_as_what_it_was(tmp_path: Path) -> None:
    """Byte for byte; header and footer are read without unpacking."""
    spool = SpoolFixture(tmp_path)
    spool.fill(60)
    spool.stop()
    path = spool.layout.segment(*spool.layout.list_segments()[0])
    before, header = path.read_bytes(), read_header(path)
    pack_file(path, SMALL)
    assert len(path.read_bytes()) < len(before) / 2
    assert plain_bytes(path) == before
    assert read_header(path) == header
    with path.open("rb") as file:
        assert is_packed(file.fileno())
        assert read_footer(file.fileno()) is not None


def test_everybody_reads_it(tmp_path: Path) -> None:
    """Readers, a check of the spool, and a starting daemon read it; marks know it as the same segment."""
    spool, sent, _ = made(tmp_path)
    assert messages(spool.layout) == sent
    assert [f for f in Check().spool(spool.layout) if f.severity.name != "NOTE"] == []
    identities = [info.identity for info in SegmentList(spool.layout).segments]
    spool.open()
    assert [info.identity for info in SegmentList(spool.layout).segments][: len(identities)] == identities
    assert messages(spool.layout)[: len(sent)] == sent
    spool.crash()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_damage_costs_a_block(tmp_path_factory: pytest.TempPathFactory, place: float, by: int) -> None:
    """With any byte changed, the messages that are read were sent, in order, and most are read."""
    spool, sent, paths = made(tmp_path_factory.mktemp("spool"))
    image = bytearray(paths[0].read_bytes())
    first = packed._FIRST + packed._CHECKED.size
    # Its length differs from one example to the next: headers hold times.
    at = first + int(place * (len(image) - first))
    image[at] ^= by
    paths[0].write_bytes(image)
    found = messages(spool.layout)
    places = [sent.index(datagram) for datagram in found]
    assert places == sorted(set(places))
    in_first = sum(p < int(read_header(paths[1])["first_sequence"]) for p in places)
    assert len(found) - in_first == len(sent) - int(read_header(paths[1])["first_sequence"])


def test_a_damaged_block_leaves_the_others(tmp_path: Path) -> None:
    """Its frames are missed, and those before and behind it are read."""
    spool, sent, paths = made(tmp_path)
    first = paths[0].read_bytes()
    at = packed._FIRST + packed._CHECKED.size + 40
    paths[0].write_bytes(first[:at] + bytes([first[at] ^ 255]) + first[at + 1 :])
    found = messages(spool.layout)
    missing = [datagram for datagram in sent if datagram not in found]
    assert 0 < len(missing) < 15
    assert found == [datagram for datagram in sent if datagram not in missing]


def test_a_damaged_first_line_is_no_other_file(tmp_path: Path) -> None:
    """Without the magic in front, the blocks show that it is a packed segment."""
    spool, sent, paths = made(tmp_path)
    paths[0].write_bytes(bytes(64) + paths[0].read_bytes()[64:])
    assert messages(spool.layout) == sent


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    """The error names the version."""
    _, _, paths = made(tmp_path)
    image = paths[0].read_bytes()
    paths[0].write_bytes(image[:8] + b"\3" + image[9:])
    with pytest.raises(UnknownVersion, match=rf"{paths[0].name}.* is packed in version 3"):
        open_plain(paths[0])


def test_what_is_not_sealed_is_not_packed(tmp_path: Path) -> None:
    """A process may still write to it."""
    spool = SpoolFixture(tmp_path)
    spool.fill(5)
    source, target = os.open(spool.last_path(), os.O_RDONLY), os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    with pytest.raises(BadSpool, match="not sealed"):
        pack(source, target)
    os.close(source)
    os.close(target)
    spool.crash()


@pytest.mark.parametrize("version", [1, 2])
def test_the_golden_file_is_read(version: int) -> None:
    """packed.seg was made from sealed.seg, once, by the release that introduced this version."""
    golden = GOLDEN / f"v{version}"
    assert plain_bytes(golden / "packed.seg") == (golden / "sealed.seg").read_bytes()


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """Blocks that claim to hold more than any segment does are damage from there on."""
    _, _, paths = made(tmp_path)
    whole = plain_bytes(paths[0])
    with paths[0].open("r+b") as file:
        footer = packed.footer_of(file.fileno())
        file.seek(-len(footer), os.SEEK_END)
        # Of a block that does not match its check only the length counts: it takes no memory here.
        file.write((packed._CHECKED.pack(1, 1 << 20, 0) + b"x") * 300 + footer)
    with os.fdopen(open_plain(paths[0]), "rb") as file:
        assert (
            packed.MOST_BYTES - (1 << 20) < os.fstat(file.fileno()).st_size - len(footer) <= packed.MOST_BYTES
        )
        assert whole.startswith(file.read(len(whole) - len(footer)))


def test_the_memory_of_an_unpacked_segment_is_known_before(tmp_path: Path) -> None:
    """By the lengths of its blocks alone; it has the same bound."""
    spool, _, paths = made(tmp_path)
    with paths[0].open("r+b") as file:
        footer = packed.footer_of(file.fileno())
        assert unpacked_bytes(paths[0]) == len(plain_bytes(paths[0])) - len(footer)
        file.seek(-len(footer), os.SEEK_END)
        file.write((packed._CHECKED.pack(1, 1 << 20, 0) + b"x") * 300 + footer)
    with os.fdopen(open_plain(paths[0]), "rb") as plain:
        assert unpacked_bytes(paths[0]) == os.fstat(plain.fileno()).st_size - len(footer)
    assert unpacked_bytes(spool.last_path()) == unpacked_bytes(tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("version", "claimed", "believed"),
    [(1, 63 << 20, True), (1, 65 << 20, False), (2, 2 << 20, True), (2, 20 << 20, False)],
)
def test_a_footer_takes_what_its_format_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, claimed: int, *, believed: bool
) -> None:
    """A sparse file of a tail that claims more is read no further, by whichever command."""
    path, size = tmp_path / "planted.seg", 300 << 20
    head = np.zeros((), FOOTER)
    head["magic"], head["version"] = FOOTER_MAGIC, version
    with path.open("wb") as file:
        file.seek(size - claimed)
        file.write(head.tobytes())
        file.seek(size - FOOTER_TAIL.itemsize)
        file.write(np.array((0, claimed, FOOTER_END), FOOTER_TAIL).tobytes())
    lengths = list[int]()

    def counted(fd: int, length: int, offset: int) -> bytes:
        lengths.append(length)
        return read_at(fd, length, offset)

    monkeypatch.setattr(packed, "read_at", counted)
    with path.open("rb") as file:
        assert len(packed.footer_of(file.fileno())) == believed * claimed
    assert sum(lengths) <= believed * claimed + 1024


def test_a_block_of_a_sender_is_no_block(tmp_path: Path) -> None:
    """A block without the segment's key is damaged, at any place; so is one of this segment elsewhere."""
    _, _, paths = made(tmp_path)
    image, at = paths[0].read_bytes(), packed._FIRST
    size = packed._CHECKED.unpack_from(image, at)[0] + packed._CHECKED.size
    first, rest = image[at : at + size], image[at + size :]
    other = compress(bytes(1024))
    forged = packed._CHECKED.pack(len(other), 1024, digest(packed._LENGTHS.pack(len(other), 1024) + other))
    header = HEADER_BYTES
    for block in (forged + other, first):
        # Behind the first block, in the place of the second one.
        paths[0].write_bytes(image[: at + size] + block + rest)
        assert plain_bytes(paths[0])[header : header + 2048] == plain_first(first) + bytes(1024)


def plain_first(block: bytes) -> bytes:
    """The content of a block."""
    length, size, _ = packed._CHECKED.unpack_from(block)
    return decompress(block[packed._CHECKED.size :][:length], size) or b""


PLAIN = b"some messages " * 300


@given(st.binary(max_size=5000))
def test_what_went_in_comes_out(data: bytes) -> None:
    """A wrong length gives None."""
    packed = compress(data)
    assert packed.startswith(ZSTD)
    assert decompress(packed, len(data)) == data
    assert decompress(packed, len(data) + 1) is None


@given(st.data())
def test_damage_is_seen(data: st.DataObject) -> None:
    """Any byte changed, or the end cut off: None, and no error."""
    packed = bytearray(compress(PLAIN))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    # Bytes that no check covers, such as the window size, do not change the content.
    assert decompress(bytes(packed), len(PLAIN)) in (None, PLAIN)
    assert decompress(compress(PLAIN)[: data.draw(st.integers(0, len(packed) - 5))], len(PLAIN)) is None


@pytest.mark.parametrize("size", [1 << 33, 1 << 60])
def test_a_frame_that_claims_to_hold_more_takes_no_memory(size: int) -> None:
    """The size that it claims is in eight bytes that no check covers."""
    claim = ZSTD + bytes([0b11100100]) + struct.pack("<Q", size)
    assert decompress(claim + compress(PLAIN)[7:], len(PLAIN)) is None
