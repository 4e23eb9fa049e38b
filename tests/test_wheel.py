"""The wheel's files beside the packages: manual pages, and completion for three shells."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from tools.gen_man import ROOT

pytestmark = pytest.mark.long

PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The share folder of the prefix that the wheel is installed under."""
    place = tmp_path_factory.mktemp("wheel")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(place), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    (data,) = place.glob("bruce_spool-*.data/data")
    return data / "share"


def test_every_page_is_installed(share: Path) -> None:
    """The path at which man looks for its section; a page that pyproject.toml omits would be missing."""
    installed = {path.name: path.parent.name for path in (share / "man").glob("*/*")}
    assert installed == {path.name: f"man{path.suffix[1]}" for path in (ROOT / "man").iterdir()}


def test_man_finds_the_pages(share: Path) -> None:
    """By the name of the program, and by that of a command behind it."""
    if not shutil.which("man"):
        pytest.skip("there is no man")
    for words in (["7", "bruce"], ["8", "bruce"], ["brucectl"], ["brucectl", "inspect"]):
        found = subprocess.run(
            ["man", "-M", share / "man", *words],
            env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "80"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert found.returncode == 0, found.stderr
        assert "NAME" in found.stdout


def test_every_completion_is_installed(share: Path) -> None:
    """The path at which each shell looks for it, under the name that it looks for."""
    places = {"bash-completion/completions", "zsh/site-functions", "fish/vendor_completions.d"}
    names = {"bruce", "brucectl", "_bruce", "_brucectl", "bruce.fish", "brucectl.fish"}
    found = [path for place in places for path in (share / place).iterdir()]
    assert {path.name for path in found} == names
    assert {path.read_text() for path in found} == {
        path.read_text() for path in (ROOT / "completions").iterdir()
    }


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["brucectl", "insp"], ["inspect"]),
        (["brucectl", "inspect", "ver"], ["verify"]),
        (["brucectl", "doctor", "--pl"], ["--plan"]),
        (["bruce", "r"], ["run"]),
    ],
    ids=" ".join,
)
def test_bash_completes(share: Path, words: list[str], wanted: list[str]) -> None:
    """Words that are begun are completed, by the file that the wheel installs."""
    script = f"""
        source {share}/bash-completion/completions/{words[0]}
        COMP_WORDS=({" ".join(words)}) COMP_CWORD={len(words) - 1}
        $(complete -p {words[0]} | sed 's/.*-F \\([^ ]*\\) .*/\\1/') {words[0]}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    assert shell(["bash", "--norc", "-c", script]) == wanted


def test_zsh_completes(share: Path) -> None:
    """At the first time, when zsh has just found the file."""
    if not shutil.which("zsh"):
        pytest.skip("there is no zsh")
    script = f"""
        fpath=({share}/zsh/site-functions $fpath)
        autoload -Uz compinit && compinit -D
        _arguments() {{ print -l -- $@ }}
        words=(brucectl insp) CURRENT=2
        _brucectl
    """
    assert any("inspect" in line for line in shell(["zsh", "-f", "-c", script]))


def test_fish_completes(share: Path) -> None:
    """By the file that the wheel installs."""
    if not shutil.which("fish"):
        pytest.skip("there is no fish")
    script = f"source {share}/fish/vendor_completions.d/brucectl.fish; complete -C 'brucectl insp'"
    assert any(line.startswith("inspect") for line in shell(["fish", "--no-config", "-c", script]))


def shell(command: list[str]) -> list[str]:
    """The lines that a shell prints in which our programs can be called."""
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_source_distribution_builds_the_same(tmp_path: Path) -> None:
    """A wheel made of nothing but what the sdist has is the wheel that the tree makes, file by file."""
    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("bruce_spool-*/")
    wheels = [
        WheelBuilder(str(root)).build(directory=str(tmp_path / name), versions=["standard"])
        for root, name in ((ROOT, "tree"), (unpacked, "sdist"))
    ]
    of_tree, of_sdist = (contents(Path(wheel)) for (wheel,) in wheels)
    assert of_sdist == of_tree
    assert any(name.endswith("/share/man/man8/bruce.8") for name in of_sdist)
    assert (unpacked / "install/systemd/bruce.service").exists(), "units are for packages of others"


def contents(wheel: Path) -> dict[str, bytes]:
    """By name, what a wheel has."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
