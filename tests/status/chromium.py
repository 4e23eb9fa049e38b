"""A Chromium for machines that have none: a build without a screen, from npm, set up once, without root.

    .cache/chromium/VERSION/chromium, lib/, fonts/, start      `start` is the program to call

The package @sparticuz/chromium (MIT) holds it compressed by brotli, with the libraries that servers lack.
Wanted: node, npm, and the registry at the first time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from functools import cache
from pathlib import Path

import pytest

VERSION = "147.0.0"
SHA256 = "18fe5404ce845594cd7d592fc07f37a19514079ba4d9c27192ad8b908743f16b"
FETCH_S = 300
CACHE = Path(__file__).resolve().parents[2] / ".cache/chromium"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "headless_shell")
_UNPACK = """
const zlib = require("zlib"), fs = require("fs");
const [, from, to] = process.argv;
fs.writeFileSync(to, zlib.brotliDecompressSync(fs.readFileSync(from)));
"""
_START = """#!/bin/sh
here="$(dirname "$0")"
export LD_LIBRARY_PATH="$here/lib" FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/chromium" "$@"
"""
_FONTS = """<?xml version="1.0"?>
<fontconfig><dir>/usr/share/fonts</dir><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>
"""


class NoBrowser(Exception):
    """There is no browser, and none can be fetched; the message gives the reason."""


def demand_browser() -> str:
    """The browser of this machine, or one from npm; skips the test if there is neither."""
    try:
        return next(filter(None, map(shutil.which, _NAMES)), None) or _fetched()
    except NoBrowser as error:
        pytest.skip(f"no Chromium on this machine, and none from npm: {error}")


@cache
def _tried() -> str | NoBrowser:
    """Tried once a session, successful or not."""
    place = CACHE / VERSION
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not place.exists():
                _fetch(place)
        except (OSError, subprocess.SubprocessError, NoBrowser) as error:
            return NoBrowser(str(error))
    return str(place / "start")


def _fetched() -> str:
    found = _tried()
    if isinstance(found, NoBrowser):
        raise found
    return found


def _fetch(place: Path) -> None:
    """Download and unpack it. Raises NoBrowser, OSError, SubprocessError."""
    for program in ("npm", "node"):
        if not shutil.which(program):
            raise NoBrowser(f"{program} is not installed")
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        work = Path(name)
        _run(work, "npm", "pack", "--silent", "--ignore-scripts", f"@sparticuz/chromium@{VERSION}")
        (package,) = work.glob("*.tgz")
        if hashlib.sha256(package.read_bytes()).hexdigest() != SHA256:
            raise NoBrowser("the package is not the one that these tests know")
        with tarfile.open(package) as archive:
            archive.extractall(work, filter="data")
        made = work / "made"
        made.mkdir()
        _run(work, "node", "-e", _UNPACK, "package/bin/chromium.br", "made/chromium")
        for archive_name in ("al2023", "fonts"):
            _run(work, "node", "-e", _UNPACK, f"package/bin/{archive_name}.tar.br", "part.tar")
            with tarfile.open(work / "part.tar") as part:
                part.extractall(made, filter="data")
        fonts = _FONTS.format(fonts=place / "fonts", cache=place / "fonts-cache")
        (made / "fonts.conf").write_text(fonts)
        (made / "start").write_text(_START)
        for program in ("chromium", "start"):
            (made / program).chmod(0o755)
        _run(made, "./start", "--version")
        made.rename(place)


def _run(directory: Path, *command: str) -> None:
    # The machine's own configuration of npm stays; the output of npm is in the error if it fails.
    done = subprocess.run(
        command, cwd=directory, env=os.environ, capture_output=True, text=True, check=False, timeout=FETCH_S
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise NoBrowser(f"{command[0]}: {lines[-1]}")
