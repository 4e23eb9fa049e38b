"""The source distribution in an environment of its own: used, reinstalled, removed, as `pip` does it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.sdist import SdistBuilder

from tests.daemon import START_S, free_port
from tools.debian import ROOT, libraries, release

pytestmark = pytest.mark.long

BUILDER = ("hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers")
"""The packages that build the wheel; pip would fetch them into an environment of its own."""
CONFIGURED = """\
[ingest]
datagram_socket = "{place}/bruce.sock"
[spool]
directory = "{place}/spool"
[status]
port = {port}
[kafka]
"bootstrap.servers" = "{servers}"
"""
COMPILED_S = 600.0
"""For all compiled loops of a first start, on a machine that has other work."""
NOBODY = "127.0.0.1:9"


class Installation:
    """An environment in an empty directory, outside the tree, and what is called in it."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.home = place / "environment"
        self.environ = {
            **{name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ},
            "PATH": f"{self.home}/bin:/usr/bin:/bin",
            "HOME": str(place),
            "BRUCE_CONFIG": str(place / "bruce.toml"),
            "BRUCE_RUNTIME_DIRECTORY": str(place),
        }
        subprocess.run([sys.executable, "-m", "venv", self.home], check=True, timeout=300)
        (self.site,) = self.home.glob("lib/python*/site-packages")
        for found in (*libraries(), *map(metadata.distribution, BUILDER)):
            for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                if not (self.site / name).exists():
                    (self.site / name).symlink_to(str(found.locate_file(name)))

    def run(self, *command: object) -> str:
        """A program's standard output; it must succeed."""
        done = subprocess.run(
            list(map(str, command)),
            cwd=self._place,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def pip(self, *arguments: object) -> None:
        """The wanted packages are linked into the environment: pip checks versions, and fetches nothing."""
        self.run("python", "-m", "pip", "--no-cache-dir", "--isolated", *arguments)

    def install(self, sdist: Path, *options: str) -> None:
        """As `pip install` of a file does."""
        self.pip("install", "--no-index", "--no-build-isolation", *options, sdist)

    def files(self) -> set[str]:
        """The files of the environment, without those that Python compiled of others."""
        return {
            str(path.relative_to(self.home))
            for path in self.home.rglob("*")
            if path.is_file() and "/pip/" not in str(path) and path.suffix != ".pyc"
        }

    def configure(self, servers: str) -> None:
        """Write bruce.toml."""
        text = CONFIGURED.format(place=self._place, port=free_port(), servers=servers)
        (self._place / "bruce.toml").write_text(text, encoding="utf-8")

    def status(self) -> dict[str, Any]:
        """`brucectl status --json`, whatever it thinks of what it sees."""
        done = subprocess.run(
            ["brucectl", "status", "--json"],
            cwd=self._place,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return dict(json.loads(done.stdout)) if done.stdout else {}

    def live(self, servers: str, **wanted: int) -> None:
        """A daemon from its start until the totals say so; it stops in order."""
        self.configure(servers)
        with (self._place / "log").open("ab") as log:
            daemon = subprocess.Popen(
                ["bruce", "run"], cwd=self._place, env=self.environ, stdin=subprocess.DEVNULL, stderr=log
            )
        try:
            self._await((self._place / "bruce.sock").exists, START_S, daemon)
            self.run("brucectl", "send", "--topic", "orders", "hello")
            # The first start compiles when it has a socket.
            self._await(lambda: wanted.items() <= self.status().items(), COMPILED_S, daemon)
        finally:
            daemon.terminate()
            assert daemon.wait(START_S) == 0

    def _await(self, condition: Callable[[], bool], seconds: float, daemon: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert daemon.poll() is None, (self._place / "log").read_text()
            assert time.monotonic() < end, f"waited in vain: {self.status()}"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution."""
    place = tmp_path_factory.mktemp("sdist")
    (path,) = SdistBuilder(str(ROOT)).build(directory=str(place), versions=["standard"])
    return Path(path)


@pytest.fixture
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An environment with bruce's libraries in it, and not bruce."""
    return Installation(tmp_path_factory.mktemp("place"))


@pytest.mark.long
def test_a_life_of_an_installation(sdist: Path, installation: Installation) -> None:
    """Installed, it delivers; reinstalled over a backlog, it loses nothing; removed, it leaves the spool.

    The files that `pip uninstall` leaves were compiled on this host, and go with the environment.
    """
    before = installation.files()
    installation.install(sdist)
    for program in ("bruce", "brucectl"):
        assert installation.run(program, "--version") == f"bruce {release()}\n"
    for file in ("man/man8/bruce.8", "bash-completion/completions/brucectl", "zsh/site-functions/_bruce"):
        assert (installation.home / "share" / file).stat().st_size

    installation.configure("embedded")
    assert str(installation.site) in installation.run("brucectl", "doctor")
    installation.live("embedded", received=1, delivered=1, backlog=0)
    installation.live(NOBODY, received=2, delivered=1, backlog=1)
    installation.install(sdist, "--force-reinstall", "--no-deps")
    installation.live("embedded", received=3, delivered=3, backlog=0)

    installation.pip("uninstall", "--yes", "bruce-spool")
    left = installation.files() - before
    # Numba writes a file under another name first: a stop in the middle leaves that.
    written = re.compile(r"/__pycache__/[^/]+\.nb[ic](\.tmp\.\w+)?$")
    assert not [path for path in left if not written.search(path)]
    outside = {path.name for path in installation.home.parent.iterdir()} - {
        "environment",
        "bruce.toml",
        "log",
    }
    assert {name for name in outside if not name.startswith(("bruce-", ".cache"))} == {"spool"}
