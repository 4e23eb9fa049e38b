"""`brucectl inspect carve`: messages from an image without a readable filesystem.

These are the tests of `cli.commands.inspect.carve` and `spool.fsck.frame_recovery`, too.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spool.format.frame import POSITION, length_of
from spool.format.scan import Chunk
from spool.format.segment import list_files
from spool.format.segment_format import HEAD, HEAD_BYTES, HEADER_BYTES, decode_header, keys_of
from spool.format.wire import encode
from spool.fsck.frame_recovery import Carver, Run
from spool.read.files import heads_of
from spool.storage.disk import read_at
from tests.cli.inspect.test_inspect import PROGRAM, inspect
from tests.daemon import ROOT
from tests.spool.fixture import SpoolFixture
from tests.spool.memory import Chain

BLOCK = 4096


def carve(path: Path, *spools: Path) -> Iterator[tuple[Run, Chunk]]:
    """The frames found in an image, with the secrets of these spools."""
    carver = Carver(path, spools)
    try:
        yield from carver.runs()
    finally:
        carver.close()


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Blocks of three segments among noise: one whole, one without its beginning, one twice."""
    spool = SpoolFixture(tmp_path)
    for burst in range(30):
        spool.append(
            [encode(b"t", b"%d" % number + b" " * 40) for number in range(10 * burst, 10 * burst + 10)]
        )
        spool.step()
    spool.crash()
    files = [path.read_bytes() for path in list_files(spool.layout)[:3]]
    first, second, third = (data + bytes(-len(data) % BLOCK) for data in files)
    noise = random.Random(7).randbytes(3 * BLOCK)
    path = tmp_path / "disk.img"
    path.write_bytes(noise + first + noise + second[BLOCK:] + b"bfrm" * 1024 + third + noise + third)
    return path


@pytest.mark.parametrize("verified", [False, True])
def test_what_is_found(image: Path, tmp_path: Path, *, verified: bool) -> None:
    """Every whole frame is found once, with its place and its messages. The image stays as it is.

    The table, JSON, the records and a sentence all say whether the spool's secret was at hand.
    """
    before, secrets = image.read_bytes(), ["--secrets-from", tmp_path / "spool"] if verified else []
    done = inspect("carve", "--json", *secrets, image)
    report = json.loads(done.stdout)
    assert {run["verified"] for run in report["runs"]} == {verified}
    told = "" if verified else "are not verified: a sender may have made them (see --secrets-from)\n"
    assert done.stderr.endswith(told)
    assert bool(done.stderr) != verified
    assert (report["version"], report["image"]) == (1, str(image))
    whole, cut, third, again = report["runs"]
    assert whole["offset"] == 3 * BLOCK + 384
    assert (whole["first_sequence"], whole["messages"]) == (0, whole["next_sequence"])
    assert whole["next_sequence"] < cut["first_sequence"] < cut["next_sequence"] == third["first_sequence"]
    assert (again["messages"], again["again"]) == (0, third["frames"])
    assert all(run["messages"] == run["next_sequence"] - run["first_sequence"] for run in (whole, cut, third))
    lines = inspect("carve", "--records", *secrets, image).stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert {one["verified"] for one in records} == {verified}
    assert [one["sequence"] for one in records] == [
        sequence
        for run in (whole, cut, third)
        for sequence in range(run["first_sequence"], run["next_sequence"])
    ]
    assert all(one["value"].strip() == str(one["sequence"]) for one in records)
    assert image.read_bytes() == before
    table = inspect("carve", *secrets, image).stdout.splitlines()
    assert table[0].split("\t")[:3] == [str(3 * BLOCK + 384), "yes" if verified else "no", "0"]


def test_a_frame_of_a_sender_is_not_verified(tmp_path: Path) -> None:
    """Whole frames and a whole header in a message, found because the frame around them is damaged."""
    spool, forged = SpoolFixture(tmp_path / "spool"), Chain.of(2, first=4711)
    spool.append(
        [encode(b"t", bytes(shift) + forged.data()[: int(forged.tail[POSITION])]) for shift in range(8)]
    )
    spool.append([encode(b"t", b"mine")])
    spool.step()
    spool.crash()
    (path,) = list_files(spool.layout)
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 24] ^= 1
    image = tmp_path / "disk.img"
    image.write_bytes(bytes(BLOCK) + data)
    found = {(run.first_sequence, run.verified) for run, _ in carve(image, spool.layout.directory)}
    assert found == {(4711, False), (8, True)}


def test_an_image_that_begins_inside_a_message_is_not_verified(tmp_path: Path) -> None:
    """A fragment of a disk whose first bytes are a segment that a sender made, header and all."""
    forged = Chain.of(2, first=4711)
    image = tmp_path / "fragment.img"
    image.write_bytes(forged.data())
    assert [(run.first_sequence, run.verified) for run, _ in carve(image)] == [(4711, False)]


def test_many_long_claims_cost_no_more_than_the_image(tmp_path: Path) -> None:
    """Heads that claim the largest frames, end to end, are read a few times in all."""
    head = bytearray(HEAD_BYTES)
    head[12:14], head[16:20] = (64).to_bytes(2, "little"), (1).to_bytes(4, "little")
    head[24:28] = (2 << 20).to_bytes(4, "little")
    path = tmp_path / "disk.img"
    path.write_bytes(bytes(head) * ((4 << 20) // HEAD_BYTES))
    read = 0

    def counted(fd: int, length: int, offset: int) -> bytes:
        nonlocal read
        data = read_at(fd, length, offset)
        read += len(data)
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spool.fsck.frame_recovery.read_at", counted)
        assert list(carve(path)) == []
    assert read < 8 * path.stat().st_size


def test_parts_of_what_was_found(tmp_path: Path) -> None:
    """Pieces of a segment, in any order, that overlap and begin at any block: each frame counts once."""
    data = segment_of(tmp_path, 3000)
    chosen = random.Random(5)
    cuts = sorted(chosen.sample(range(len(data.rstrip(bytes(1))) // BLOCK), 6))
    pieces = [data[a * BLOCK : b * BLOCK] for a, b in itertools.combinations(cuts, 2)]
    chosen.shuffle(pieces)
    path = tmp_path / "disk.img"
    path.write_bytes(bytes(BLOCK).join(pieces))
    found = list[int]()
    for _, chunk in carve(path):
        found += heads_of(chunk)[1]["digest"].tolist() if len(chunk.frames) else []
    assert len(found) == len(set(found)) > 100
    mark = keys_of(decode_header(data, "")).mark.to_bytes(4, "little")
    seen = {int(digest) for piece in pieces for digest in whole_frames(piece, mark)}
    assert set(found) == seen


@pytest.mark.long
def test_memory_on_a_large_image(tmp_path: Path) -> None:
    """Carving keeps little memory for each chunk of frames, and none for holes or single frames."""
    data = segment_of(tmp_path, 40_000)
    path = tmp_path / "disk.img"
    with path.open("wb") as image:
        for offset in (256 << 20, 768 << 20):
            image.seek(offset)
            image.write(data)
        image.truncate(1 << 30)
    runs, kept = dict[int, Run](), 0
    tracemalloc.start()
    try:
        for run, _ in carve(path):
            runs[run.offset] = run
            kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    one, other = runs.values()
    assert (one.frames, one.again, other.frames, other.again) == (40_000, 0, 0, 40_000)
    assert kept < 3 << 20


def segment_of(directory: Path, frames: int) -> bytes:
    """A segment with this many frames of one message."""
    spool = SpoolFixture(directory, segment_bytes=16 << 20, max_bytes=128 << 20)
    datagram = encode(b"t", b"value")
    for _ in range(frames):
        spool.writer.append([datagram])
    spool.step()
    spool.crash()
    (path,) = list_files(spool.layout)
    return path.read_bytes()


def whole_frames(piece: bytes, mark: bytes) -> list[int]:
    """Digests of the frames that are entirely in it."""
    found, at = [], piece.find(mark, 8)
    while 0 <= at <= len(piece) - HEAD_BYTES:
        head = np.frombuffer(piece, HEAD, 1, at - 8)[0]
        if at - 8 + length_of(head) <= len(piece):
            found.append(int(head["digest"]))
        at = piece.find(mark, at + 1)
    return found


def test_as_datagrams(image: Path, tmp_path: Path) -> None:
    """They can be sent again, like those of `export`; those that a sender may have made only if asked for."""
    first = encode(b"t", b"0" + b" " * 40) + encode(b"t", b"1" + b" " * 40)

    def run(*more: object) -> tuple[bytes, str]:
        command = [*PROGRAM, "inspect", "carve", "--datagrams", *more, image]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=120)
        return done.stdout, done.stderr.decode()

    verified, told = run("--secrets-from", tmp_path / "spool")
    assert verified.startswith(first)
    assert told == ""
    nothing, told = run()
    assert nothing == b""
    assert told.endswith(
        "are not verified: a sender may have made them (see --secrets-from), and they are left "
        "out (see --unverified)\n"
    )
    everything, told = run("--unverified")
    assert everything == verified
    assert told.endswith("(see --secrets-from)\n")
    assert inspect("carve", "--unverified", image, code=2).stderr.startswith("--unverified goes with")


def test_nothing_to_find(tmp_path: Path) -> None:
    """Noise holds no message, an empty file none either; a directory is no image."""
    noise, empty = tmp_path / "noise", tmp_path / "empty"
    noise.write_bytes(random.Random(8).randbytes(10 * BLOCK) + b"bfrm" * 4096)
    empty.touch()
    for path in (noise, empty):
        done = inspect("carve", path, code=1)
        assert (done.stdout, done.stderr) == ("", "no frame was found\n")
    assert inspect("carve", tmp_path, code=2).stderr.startswith(f"{tmp_path} is no file: ")
    assert inspect("carve", "--json", "--records", noise, code=2).stderr.startswith("give one of")
