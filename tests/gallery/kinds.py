"""The kinds of damage: each a function that damages a copy of the good spool.

It answers with the sequence numbers of the messages whose bytes it destroyed: no others may be lost.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spool.format.segment import seal
from spool.format.segment_format import HEADER, HEADER_BYTES, VERSION
from spool.format.wire import encode
from spool.index.identity import read_identity
from spool.layout import SENT, SPARE, Layout, segment_name
from spool.native.digest import digest
from spool.storage.ab_slots import SLOTS_BYTES
from tests.gallery.good import Good
from tests.spool import plain
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import pack_file, shorten

SENT_ONE, PACKED, SEALED, LATER, LIVE = range(5)
"""Places of segments in the good spool."""
NOTHING: frozenset[int] = frozenset()
_PACKED_FIRST = 64 + HEADER_BYTES


@dataclass(frozen=True)
class Copy:
    """The copy that is damaged, and the good spool that it is a copy of."""

    layout: Layout
    good: Good

    def path(self, at: int) -> Path:
        """The file of a segment."""
        return self.layout.segments / self.good.names[at]

    def frames(self, at: int, first: int, count: int = 1) -> list[plain.Frame]:
        """Frames of a segment that hold messages, from the one at `first` on (negative: from the end)."""
        holding = [frame for frame in self.good.frames[at] if frame.datagrams]
        return holding[first:][:count]

    def messages(self, at: int) -> frozenset[int]:
        """All of a segment."""
        return sequences(*self.good.frames[at])

    def patch(self, at: int, offset: int, data: bytes) -> None:
        """Overwrite bytes of a segment's file."""
        patch(self.path(at), offset, data)


Spoil = Callable[[Copy], frozenset[int]]


def patch(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, offset: int) -> None:
    """Flip a bit of a file."""
    patch(path, offset, bytes([path.read_bytes()[offset] ^ 4]))


def sequences(*frames: plain.Frame) -> frozenset[int]:
    """The sequence numbers of the messages in these frames."""
    return frozenset(frame.sequence + i for frame in frames for i in range(len(frame.datagrams)))


def length(frame: plain.Frame) -> int:
    """Bytes that a frame takes, from its head to the next frame."""
    return 64 + (12 * len(frame.datagrams) + sum(map(len, frame.datagrams)) + 7) // 8 * 8


def rewrite_header(path: Path, at: int = 0, **fields: object) -> None:
    """Change fields of the header at an offset, with a check that is right."""
    record = np.frombuffer(path.read_bytes()[at:][:HEADER_BYTES], HEADER).copy()
    for name, value in fields.items():
        record[name] = value
    record["check"] = digest(record.tobytes()[:-8])
    patch(path, at, record.tobytes())


# -- frames --------------------------------------------------------------------------------------------


def flipped_value(copy: Copy) -> frozenset[int]:
    """A bit flipped in a message."""
    (frame,) = copy.frames(SEALED, 4)
    flip(copy.path(SEALED), frame.offset + 64 + 36 + 40)
    return sequences(frame)


def flipped_head(copy: Copy) -> frozenset[int]:
    """A bit flipped in the length of a frame."""
    (frame,) = copy.frames(SEALED, 4)
    flip(copy.path(SEALED), frame.offset + 24)
    return sequences(frame)


def flipped_first(copy: Copy) -> frozenset[int]:
    """A bit flipped in the first frame of a segment."""
    (frame,) = copy.frames(SEALED, 0)
    flip(copy.path(SEALED), frame.offset + 100)
    return sequences(*(f for f in copy.good.frames[SEALED] if f.offset <= frame.offset))


def flipped_last(copy: Copy) -> frozenset[int]:
    """A bit flipped in the last frame of a sealed segment."""
    frame = [f for f in copy.good.frames[SEALED] if f.datagrams][-1]
    flip(copy.path(SEALED), frame.offset + 100)
    return sequences(frame)


def flipped_sent(copy: Copy) -> frozenset[int]:
    """A bit flipped in a segment that is delivered."""
    (frame,) = copy.frames(SENT_ONE, 4)
    flip(copy.path(SENT_ONE), frame.offset + 100)
    return sequences(frame)


def flipped_live(copy: Copy) -> frozenset[int]:
    """A bit flipped in the segment in use."""
    (frame,) = copy.frames(LIVE, 1)
    flip(copy.path(LIVE), frame.offset + 100)
    return sequences(frame)


def zeroed_frame(copy: Copy) -> frozenset[int]:
    """Zeros for a frame."""
    (frame,) = copy.frames(SEALED, 4)
    copy.patch(SEALED, frame.offset, bytes(length(frame)))
    return sequences(frame)


def zeroed_live(copy: Copy) -> frozenset[int]:
    """Zeros for the first frame of the segment in use."""
    (frame,) = copy.frames(LIVE, 0)
    copy.patch(LIVE, frame.offset, bytes(length(frame)))
    return sequences(frame)


def zeroed_sectors(copy: Copy) -> frozenset[int]:
    """Zeros for 2 KiB in the middle of a segment."""
    copy.patch(SEALED, 2048, bytes(2048))
    return sequences(
        *(f for f in copy.good.frames[SEALED] if f.offset + length(f) > 2048 and f.offset < 4096)
    )


def garbage(copy: Copy) -> frozenset[int]:
    """Garbage for 2 KiB in the middle of a segment."""
    zeroed = zeroed_sectors(copy)
    copy.patch(SEALED, 2048, random.Random(1).randbytes(2048))
    return zeroed


def duplicated_frame(copy: Copy) -> frozenset[int]:
    """A frame's bytes again, in place of the next frame."""
    one, other = copy.frames(SEALED, 6, 2)
    assert length(one) == length(other) == other.offset - one.offset
    data = copy.path(SEALED).read_bytes()
    copy.patch(SEALED, other.offset, data[one.offset : other.offset])
    return sequences(other)


def swapped_frames(copy: Copy) -> frozenset[int]:
    """Two frames swapped."""
    one, other = copy.frames(SEALED, 6, 2)
    data = copy.path(SEALED).read_bytes()
    copy.patch(SEALED, one.offset, data[other.offset :][: length(other)] + data[one.offset : other.offset])
    return sequences(one, other)


def foreign_frame(copy: Copy) -> frozenset[int]:
    """A frame of another spool, with the same numbers, in place of a frame."""
    (frame,) = copy.frames(SEALED, 4)
    made = stranger(copy)
    at = [f for f in plain.read_segment(made).frames if f.datagrams]
    (other,) = [f for f in at if f.sequence == frame.sequence]
    assert (other.burst, length(other)) == (frame.burst, length(frame))
    copy.patch(SEALED, frame.offset, made[other.offset :][: length(other)])
    return sequences(frame)


def cut_out(copy: Copy) -> frozenset[int]:
    """A frame cut out, what is behind it moved forward."""
    (frame,) = copy.frames(SEALED, 4)
    path = copy.path(SEALED)
    data = path.read_bytes()
    path.write_bytes(data[: frame.offset] + data[frame.offset + length(frame) :])
    return sequences(frame)


def pushed_in(copy: Copy) -> frozenset[int]:
    """13 bytes pushed in, what is behind them moved back."""
    (frame,) = copy.frames(SEALED, 4)
    path = copy.path(SEALED)
    data = path.read_bytes()
    path.write_bytes(data[: frame.offset] + b"thirteen byte" + data[frame.offset :])
    return sequences(*(f for f in copy.good.frames[SEALED] if f.offset >= frame.offset))


# -- whole files ---------------------------------------------------------------------------------------


def cut_sealed(copy: Copy) -> frozenset[int]:
    """A sealed segment cut in the middle of a frame."""
    frame = copy.frames(SEALED, 10)[0]
    os.truncate(copy.path(SEALED), frame.offset + 100)
    return sequences(*(f for f in copy.good.frames[SEALED] if f.offset >= frame.offset))


def cut_at_frame(copy: Copy) -> frozenset[int]:
    """A sealed segment cut between two frames."""
    frame = copy.frames(SEALED, 10)[0]
    os.truncate(copy.path(SEALED), frame.offset)
    return sequences(*(f for f in copy.good.frames[SEALED] if f.offset >= frame.offset))


def cut_live(copy: Copy) -> frozenset[int]:
    """The segment in use cut in the middle."""
    frame = copy.frames(LIVE, 2)[0]
    os.truncate(copy.path(LIVE), frame.offset + 100)
    return sequences(*(f for f in copy.good.frames[LIVE] if f.offset >= frame.offset))


def torn_live(copy: Copy) -> frozenset[int]:
    """The last frame of the segment in use half there, as a power loss leaves it."""
    frame = copy.good.frames[LIVE][-1]
    copy.patch(LIVE, frame.offset + 80, bytes(length(frame) - 80))
    return sequences(frame)


def emptied(copy: Copy) -> frozenset[int]:
    """A segment of 0 bytes."""
    os.truncate(copy.path(SEALED), 0)
    return copy.messages(SEALED)


def all_zeros(copy: Copy) -> frozenset[int]:
    """A segment of nothing but zeros."""
    path = copy.path(SEALED)
    path.write_bytes(bytes(path.stat().st_size))
    return copy.messages(SEALED)


def removed(copy: Copy) -> frozenset[int]:
    """A segment in the middle gone."""
    copy.path(SEALED).unlink()
    return copy.messages(SEALED)


def removed_two(copy: Copy) -> frozenset[int]:
    """Two segments in the middle gone."""
    copy.path(SEALED).unlink()
    copy.path(LATER).unlink()
    return copy.messages(SEALED) | copy.messages(LATER)


def removed_first(copy: Copy) -> frozenset[int]:
    """The first segment that is not delivered gone, and those before it."""
    copy.path(SENT_ONE).unlink()
    copy.path(PACKED).unlink()
    return copy.messages(SENT_ONE) | copy.messages(PACKED)


def removed_last(copy: Copy) -> frozenset[int]:
    """The segment in use gone."""
    copy.path(LIVE).unlink()
    return copy.messages(LIVE)


def removed_all(copy: Copy) -> frozenset[int]:
    """All segments gone."""
    for path in copy.layout.segments.iterdir():
        path.unlink()
    return frozenset(copy.good.sent)


def directory_for_segment(copy: Copy) -> frozenset[int]:
    """A directory in place of a segment."""
    copy.path(SEALED).unlink()
    copy.path(SEALED).mkdir()
    return copy.messages(SEALED)


def swapped(copy: Copy) -> frozenset[int]:
    """The names of two segments swapped."""
    one, other = copy.path(SEALED).read_bytes(), copy.path(LATER).read_bytes()
    copy.path(SEALED).write_bytes(other)
    copy.path(LATER).write_bytes(one)
    return NOTHING


def renamed(copy: Copy) -> frozenset[int]:
    """A segment renamed to a higher number."""
    path = copy.path(SEALED)
    path.rename(path.with_name(segment_name(int(path.stem) + 10)))
    return NOTHING


def renamed_lower(copy: Copy) -> frozenset[int]:
    """A segment renamed to a lower number."""
    path = copy.path(LATER)
    path.rename(path.with_name(segment_name(int(path.stem) - 10)))
    return NOTHING


def copied(copy: Copy) -> frozenset[int]:
    """A segment twice, once under another number."""
    path = copy.path(SEALED)
    shutil.copy(path, path.with_name(segment_name(int(path.stem) + 10)))
    return NOTHING


def sent_and_not(copy: Copy) -> frozenset[int]:
    """A delivered segment twice, once as if it were not."""
    path = copy.path(SENT_ONE)
    shutil.copy(path, path.with_suffix(".seg"))
    return NOTHING


def called_sent(copy: Copy) -> frozenset[int]:
    """A stale copy of a segment that is cut off, beside the whole one."""
    path = copy.path(SEALED)
    stale = path.with_suffix(SENT)
    stale.write_bytes(path.read_bytes()[: copy.frames(SEALED, 3)[0].offset])
    return NOTHING


def stale(copy: Copy) -> frozenset[int]:
    """A segment as it was when it was half full, restored over itself."""
    frame = copy.frames(SEALED, 8)[0]
    path = copy.path(SEALED)
    path.write_bytes(path.read_bytes()[: frame.offset].ljust(8192, bytes(1)))
    return sequences(*(f for f in copy.good.frames[SEALED] if f.offset >= frame.offset))


def foreign(copy: Copy) -> frozenset[int]:
    """A segment of another spool in place of a segment."""
    copy.path(SEALED).write_bytes(stranger(copy))
    return copy.messages(SEALED)


def foreign_more(copy: Copy) -> frozenset[int]:
    """A segment of another spool beside the others."""
    path = copy.path(SEALED)
    path.with_name(segment_name(int(path.stem) + 10)).write_bytes(stranger(copy))
    return NOTHING


def foreign_behind(copy: Copy) -> frozenset[int]:
    """A segment of another spool behind the others."""
    path = copy.path(LIVE)
    path.with_name(segment_name(int(path.stem) + 1000)).write_bytes(stranger(copy))
    return NOTHING


def stranger(copy: Copy) -> bytes:
    """The segment of another spool that holds the same sequence numbers, with other messages."""
    cached = copy.good.directory.with_name("stranger")
    if not cached.exists():
        spool = SpoolFixture(copy.good.directory.with_name("strange"))
        # Its log is the longer one.
        while len(spool.layout.list_segments()) < LIVE + 3:
            for _ in range(3):
                first = int(spool.writer.tail[4])
                spool.append([encode(b"t%d" % (i % 2), b"%d:" % (first + i) + b"w" * 50) for i in range(3)])
            spool.append([], refused={1: (2, b"x")})
            spool.step()
        cached.write_bytes(spool.layout.segment(*spool.layout.list_segments()[SEALED]).read_bytes())
        spool.crash()
    return cached.read_bytes()


# -- headers, footers, packed segments -------------------------------------------------------------------


def header_flipped(copy: Copy) -> frozenset[int]:
    """A bit flipped in the header of a sealed segment."""
    flip(copy.path(SEALED), 60)
    return NOTHING


def header_zeroed(copy: Copy) -> frozenset[int]:
    """Zeros for the header of a sealed segment."""
    copy.patch(SEALED, 0, bytes(HEADER_BYTES))
    return NOTHING


def first_header_zeroed(copy: Copy) -> frozenset[int]:
    """Zeros for the header of the oldest segment."""
    copy.path(SENT_ONE).unlink()
    copy.path(PACKED).unlink()
    copy.patch(SEALED, 0, bytes(HEADER_BYTES))
    return copy.messages(SENT_ONE) | copy.messages(PACKED)


def live_header_flipped(copy: Copy) -> frozenset[int]:
    """A bit flipped in the header of the segment in use."""
    flip(copy.path(LIVE), 90)
    return NOTHING


def only_header_zeroed(copy: Copy) -> frozenset[int]:
    """Zeros for the header of the only segment that is left."""
    for at in (SENT_ONE, PACKED, SEALED, LATER):
        copy.path(at).unlink()
    copy.patch(LIVE, 0, bytes(HEADER_BYTES))
    return frozenset(copy.good.sent) - copy.messages(LIVE)


def all_headers_flipped(copy: Copy) -> frozenset[int]:
    """A bit flipped in every header."""
    for at in range(5):
        flip(copy.path(at), 64 * (at == PACKED) + 40 + 10 * at)
    return NOTHING


def header_rewritten(copy: Copy) -> frozenset[int]:
    """A header with a right check that does not continue the segment before it."""
    rewrite_header(copy.path(LATER), burst=0, stored=7)
    return NOTHING


def newer_version(copy: Copy) -> frozenset[int]:
    """A segment of a newer release among the others."""
    rewrite_header(copy.path(SEALED), version=VERSION + 1)
    leftovers(copy)
    return NOTHING


def footer_flipped(copy: Copy) -> frozenset[int]:
    """A bit flipped in a footer."""
    path = copy.path(SEALED)
    flip(path, path.stat().st_size - 40)
    return NOTHING


def footer_gone(copy: Copy) -> frozenset[int]:
    """The footer of a sealed segment cut off."""
    last = copy.good.frames[SEALED][-1]
    data = copy.path(SEALED).read_bytes()
    os.truncate(copy.path(SEALED), data.index(b"bruceftr", last.offset))
    return NOTHING


def footer_of_another(copy: Copy) -> frozenset[int]:
    """The footer of the segment behind it."""
    one, other = copy.path(SEALED), copy.path(LATER)
    data, strange = one.read_bytes(), other.read_bytes()
    at = data.index(b"bruceftr")
    one.write_bytes(data[:at] + strange[strange.index(b"bruceftr") :])
    return NOTHING


def footer_of_earlier(copy: Copy) -> frozenset[int]:
    """The footer of the segment before it."""
    one, other = copy.path(LATER), copy.path(SEALED)
    data, strange = one.read_bytes(), other.read_bytes()
    at = data.index(b"bruceftr")
    one.write_bytes(data[:at] + strange[strange.index(b"bruceftr") :])
    return NOTHING


def shorter_footer(copy: Copy) -> frozenset[int]:
    """The footer of a segment that ended sooner."""
    shorten(copy.path(SEALED), copy.frames(SEALED, 10)[0].offset)
    return NOTHING


def shorter_footer_packed(copy: Copy) -> frozenset[int]:
    """The same in a packed segment."""
    shorten(copy.path(SEALED), copy.frames(SEALED, 10)[0].offset)
    pack_file(copy.path(SEALED))
    return NOTHING


def shorter_footer_last(copy: Copy) -> frozenset[int]:
    """The same in the last segment, which was sealed."""
    seal(copy.path(LIVE))
    shorten(copy.path(LIVE), copy.frames(LIVE, 3)[0].offset)
    return NOTHING


def packed_flipped(copy: Copy) -> frozenset[int]:
    """A bit flipped in a packed segment."""
    flip(copy.path(PACKED), _PACKED_FIRST + 200)
    return copy.messages(PACKED)


def packed_head_zeroed(copy: Copy) -> frozenset[int]:
    """Zeros for the first bytes of a packed segment."""
    copy.patch(PACKED, 0, bytes(64))
    return NOTHING


def packed_length_flipped(copy: Copy) -> frozenset[int]:
    """A bit flipped in the length of a packed block."""
    flip(copy.path(PACKED), _PACKED_FIRST + 2)
    return copy.messages(PACKED)


# -- what is not a segment -------------------------------------------------------------------------------


def index_gone(copy: Copy) -> frozenset[int]:
    """The index gone."""
    shutil.rmtree(copy.layout.index)
    return NOTHING


def index_cut(copy: Copy) -> frozenset[int]:
    """The index cut off."""
    os.truncate(copy.layout.index / "data.mdb", 8192)
    return NOTHING


def index_garbage(copy: Copy) -> frozenset[int]:
    """Garbage for the index."""
    (copy.layout.index / "data.mdb").write_bytes(random.Random(1).randbytes(65536))
    return NOTHING


def index_zeroed_page(copy: Copy) -> frozenset[int]:
    """Zeros for the pages of the index behind its first two."""
    path = copy.layout.index / "data.mdb"
    patch(path, 8192, bytes(path.stat().st_size - 8192))
    return NOTHING


def index_foreign(copy: Copy) -> frozenset[int]:
    """The index of another spool."""
    stranger(copy)
    shutil.rmtree(copy.layout.index)
    shutil.copytree(copy.good.directory.with_name("strange") / "spool/index", copy.layout.index)
    return NOTHING


def marks_gone(copy: Copy) -> frozenset[int]:
    """The marks gone."""
    (copy.layout.delivery / "data.mdb").unlink()
    return NOTHING


def marks_cut(copy: Copy) -> frozenset[int]:
    """The marks cut off."""
    os.truncate(copy.layout.delivery / "data.mdb", 8192)
    return NOTHING


def marks_foreign(copy: Copy) -> frozenset[int]:
    """A segment rewritten under the marks: their rows match nothing."""
    rewrite_header(copy.path(PACKED), 64, created_ns=1)
    return NOTHING


def outcomes_flipped(copy: Copy) -> frozenset[int]:
    """A bit flipped in what a job has written down."""
    (path,) = copy.layout.outcomes.rglob("*.out")
    flip(path, path.stat().st_size - 12)
    return NOTHING


def identity_gone(copy: Copy) -> frozenset[int]:
    """The identity gone."""
    copy.layout.identity.unlink()
    return NOTHING


def identity_garbage(copy: Copy) -> frozenset[int]:
    """Garbage for the identity."""
    copy.layout.identity.write_bytes(b"\xff" * 40)
    return NOTHING


def identity_foreign(copy: Copy) -> frozenset[int]:
    """The identity of another spool."""
    text = copy.layout.identity.read_text()
    copy.layout.identity.write_text("00000000-0000-4000-8000-000000000001" + text[36:])
    assert read_identity(copy.layout)[-1] == 1
    return NOTHING


def ledger_garbage(copy: Copy) -> frozenset[int]:
    """Garbage for the ledger."""
    copy.layout.ledger.write_bytes(random.Random(1).randbytes(SLOTS_BYTES))
    return NOTHING


def ledger_cut(copy: Copy) -> frozenset[int]:
    """The ledger cut off."""
    os.truncate(copy.layout.ledger, 100)
    return NOTHING


def spare_flipped(copy: Copy) -> frozenset[int]:
    """A bit flipped in the header of a spare."""
    flip(copy.layout.segment(copy.layout.list_spares()[0], SPARE), 70)
    return NOTHING


def leftovers(copy: Copy) -> frozenset[int]:
    """Half-made files, and some without an owner."""
    (copy.layout.segments / "00000000000000000009.spare.tmp").write_bytes(b"bruceseg")
    (copy.layout.segments / "notes.txt").write_text("not ours")
    return NOTHING


_NAMED = {name: value for name, value in globals().items() if callable(value)}
KINDS: list[Spoil] = [
    value
    for value in _NAMED.values()
    if getattr(value, "__annotations__", {}).get("copy") == "Copy"
    and value.__annotations__["return"] == "frozenset[int]"
]
