"""`brucectl inspect carve`: messages from an image without a readable filesystem."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from spool.format.segment import list_files
from spool.format.wire import encode
from tests.cli.inspecting import PROGRAM, inspect
from tests.daemon import ROOT
from tests.spool.fixture import SpoolFixture

BLOCK = 4096


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
    told = "" if verified else "are not verified, perhaps forged by a sender (see --secrets-from)\n"
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
        "are not verified, perhaps forged by a sender (see --secrets-from); left out (see --unverified)\n"
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
