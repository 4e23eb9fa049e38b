"""Filesystems in files, mounted for a while, and frozen. As root, on Linux with loop devices."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.benches.machine import Skipped

UNMOUNT_S = 30.0


@contextmanager
def mounted(image: Path, at: Path, size_bytes: int) -> Iterator[Path]:
    """An empty ext4 in `image`, mounted at `at`; both are gone afterwards. Raises Skipped."""
    if os.geteuid() != 0:
        raise Skipped("mounting an image takes root")
    image.parent.mkdir(parents=True, exist_ok=True)
    at.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        file.truncate(size_bytes)
    try:
        _run("mkfs.ext4", "-q", "-F", image)
        _run("mount", "-o", "loop", image, at)
        try:
            yield at
        finally:
            _unmount(at)
    finally:
        image.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            at.rmdir()


@contextmanager
def frozen(at: Path) -> Iterator[None]:
    """Make every write to this filesystem wait. Raises Skipped."""
    _run("fsfreeze", "--freeze", at)
    try:
        yield
    finally:
        _run("fsfreeze", "--unfreeze", at)


def _unmount(at: Path) -> None:
    """Unmount when the last writer has gone; by force when it does not go."""
    end = time.monotonic() + UNMOUNT_S
    while subprocess.run(["umount", at], capture_output=True, check=False).returncode:
        if time.monotonic() > end:
            _run("umount", "--lazy", at)
            return
        time.sleep(0.1)


def _run(*command: object) -> None:
    try:
        subprocess.run([str(word) for word in command], check=True, capture_output=True, timeout=60)
    except FileNotFoundError:
        raise Skipped(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise Skipped(f"{command[0]} failed: {said}") from None
