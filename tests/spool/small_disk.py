"""Small filesystems for tests that fill them."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(kind: str, directory: Path, size_bytes: int) -> Iterator[Path]:
    """A filesystem of this size and kind (tmpfs, ext4, xfs); skips the test if none can be made."""
    if os.geteuid() != 0:
        pytest.skip("small disk: mounting needs root")
    place, image = directory / "disk", directory / "image"
    place.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=755", "tmpfs", str(place)]
    else:
        with image.open("wb") as file:
            file.truncate(size_bytes)
        _run([f"mkfs.{kind}", "-q", str(image)], "cannot be made")
        command = ["mount", "-o", "loop", str(image), str(place)]
    _run(command, "cannot be mounted")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=60)


def _run(command: list[str], trouble: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", b"") or str(error).encode()
        pytest.skip(f"small disk: {command[0]} {trouble}: {reason.decode().strip()}")


def fill_up(path: Path) -> None:
    """Fill all free space with one file, to the last block."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    # A sync gives back the space that ext4 had set aside for the file's own map.
    while _write_all(fd):
        with contextlib.suppress(OSError):
            os.fsync(fd)
    os.close(fd)


def _write_all(fd: int) -> int:
    """Write until the disk is full; returns the number of bytes."""
    written = 0
    for size in (1 << 20, 65536, 4096, 512):
        with contextlib.suppress(OSError):
            while True:
                written += os.write(fd, bytes(size))
    return written
