"""`brucectl inspect carve`: messages out of an image that no filesystem makes sense of."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from spool.files import list_files
from spool.wire import encode
from tests.cli.test_inspect import PROGRAM, inspect
from tests.daemon import ROOT
from tests.spool.rig import Rig

BLOCK = 4096


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Blocks of three segments among noise: one whole, one without its beginning, one twice."""
    rig = Rig(tmp_path)
    for burst in range(30):
        rig.append(
            [encode(b"t", b"%d" % number + b" " * 40) for number in range(10 * burst, 10 * burst + 10)]
        )
        rig.step()
    rig.crash()
    files = [path.read_bytes() for path in list_files(rig.layout)[:3]]
    first, second, third = (data + bytes(-len(data) % BLOCK) for data in files)
    noise = random.Random(7).randbytes(3 * BLOCK)
    path = tmp_path / "disk.img"
    path.write_bytes(noise + first + noise + second[BLOCK:] + b"bfrm" * 1024 + third + noise + third)
    return path


def test_what_is_found(image: Path, tmp_path: Path) -> None:
    """Every whole frame, once; where it lies, and which messages it holds. The image stays as it is."""
    before = image.read_bytes()
    report = json.loads(inspect("carve", "--json", image).stdout)
    assert (report["version"], report["image"]) == (1, str(image))
    whole, cut, third, again = report["runs"]
    assert whole["offset"] == 3 * BLOCK + 384
    assert (whole["first_sequence"], whole["messages"]) == (0, whole["next_sequence"])
    assert whole["next_sequence"] < cut["first_sequence"] < cut["next_sequence"] == third["first_sequence"]
    assert (again["messages"], again["again"]) == (0, third["frames"])
    assert all(run["messages"] == run["next_sequence"] - run["first_sequence"] for run in (whole, cut, third))
    records = [json.loads(line) for line in inspect("carve", "--records", image).stdout.splitlines()]
    assert [one["sequence"] for one in records] == [
        sequence
        for run in (whole, cut, third)
        for sequence in range(run["first_sequence"], run["next_sequence"])
    ]
    assert all(one["value"].strip() == str(one["sequence"]) for one in records)
    assert image.read_bytes() == before
    table = inspect("carve", image).stdout.splitlines()
    assert table[0].split("\t")[:2] == [str(3 * BLOCK + 384), "0"]


def test_as_datagrams(image: Path) -> None:
    """They can be sent again, as those of `export`."""
    command = [*PROGRAM, "inspect", "carve", "--datagrams", image]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=120)
    assert done.stdout.startswith(encode(b"t", b"0" + b" " * 40) + encode(b"t", b"1" + b" " * 40))


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
