"""Filesystems that promise less than a spool needs are told by what they are, and by what they cannot do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spool import filesystem
from spool.filesystem import PROBE, can_reserve, weaknesses
from tests.spool.small_disk import fill_up, mounted


@contextmanager
def mount(kind: str, directory: Path, *options: str) -> Iterator[Path]:
    """Mount a filesystem that needs no device."""
    place = directory / kind
    place.mkdir()
    subprocess.run(
        ["mount", "-t", kind, *options, kind, str(place)], check=True, capture_output=True, timeout=60
    )
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=60)


def test_a_local_disk_is_no_matter(tmp_path: Path) -> None:
    """On ext4 there is nothing to say, with room or without, and the probe leaves nothing behind."""
    with mounted("ext4", tmp_path, 16 << 20) as place:
        assert list(weaknesses(place)) == []
        fill_up(place / "ballast")
        assert can_reserve(place)
        assert not (place / PROBE).exists()


def test_memory_is_said_to_be_memory(tmp_path: Path) -> None:
    """A spool on tmpfs does not outlive the host."""
    with mounted("tmpfs", tmp_path, 1 << 20) as place:
        (found,) = weaknesses(place)
        assert found.sentence.startswith(f"{place} lies on tmpfs: it is memory")


def test_what_cannot_reserve_is_found_by_trying(tmp_path: Path) -> None:
    """Ramfs has no fallocate: the C library would write zeros, and a full disk would be found by a store."""
    if os.geteuid() != 0:
        pytest.skip("small disk: mounting needs root")
    with mount("ramfs", tmp_path) as place:
        assert not can_reserve(place)
        assert "cannot reserve space" in list(weaknesses(place))[-1].sentence
        assert not any("cannot reserve" in found.sentence for found in weaknesses(place, probe=False))
        assert list(place.iterdir()) == []


def test_the_layer_of_a_container(tmp_path: Path) -> None:
    """A spool on overlay goes with its container."""
    if os.geteuid() != 0:
        pytest.skip("small disk: mounting needs root")
    with mounted("tmpfs", tmp_path, 1 << 20) as base:
        parts = [base / name for name in ("lower", "upper", "work")]
        for part in parts:
            part.mkdir()
        options = "lowerdir={},upperdir={},workdir={}".format(*parts)
        with mount("overlay", tmp_path, "-o", options) as place:
            assert "mount a volume" in next(iter(weaknesses(place))).remedy


@pytest.mark.parametrize(("number", "name"), [(0x6969, "nfs"), (0x9123683E, "btrfs"), (0x2FC12FC1, "zfs")])
def test_those_that_are_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    """What no test can mount is known by its number."""
    monkeypatch.setattr(filesystem, "_type", lambda _: number)
    (found,) = weaknesses(tmp_path)
    assert f"lies on {name}: " in found.sentence
