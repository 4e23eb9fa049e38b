"""Commands of the witness refuse with a sentence; tests/real_kafka has those that work."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.commands.witness import places_of
from cli.config.config import load_config
from cli.terminal.errors import UNREACHABLE
from pipeline.witness.kafka_tier import Place
from pipeline.witness.lake_tier import LakePlace
from pipeline.witness.state import WitnessState
from tests.cli.program import Ended, run
from tests.spool.fixture import SpoolFixture


def call(directory: Path, *arguments: str, witness: bool = True) -> Ended:
    """A command with a configuration that names a directory for a witness, or none."""
    config = directory / "bruce.toml"
    lines = [f'[spool]\ndirectory = "{directory / "spool"}"', '[kafka]\n"bootstrap.servers" = "127.0.0.1:1"']
    lines += [f'[witness]\ndirectory = "{directory / "witness"}"'] * witness
    config.write_text("\n".join(lines) + "\n")
    return run(*arguments, "--config", str(config))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A directory with a spool."""
    spool = SpoolFixture(tmp_path)
    spool.fill(3)
    spool.stop()
    return tmp_path


@pytest.mark.parametrize("command", [("witness", "run"), ("audit", "--witness")])
def test_a_witness_needs_a_directory(stored: Path, command: tuple[str, ...]) -> None:
    """The sentence says which key to set."""
    done = call(stored, *command, witness=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "set [witness] directory in bruce.toml" in done.stderr


@pytest.mark.parametrize("told", ["east", "=h:1", "east=", "east=/p"])
def test_a_tier_has_a_name_and_a_place(stored: Path, told: str) -> None:
    """Else the command begins nothing."""
    done = call(stored, "witness", "run", "--tier", told)
    assert done.returncode == 2
    assert "--tier" in done.stderr
    assert not (stored / "witness").exists()


def test_two_tiers_have_two_names(stored: Path) -> None:
    """Their states would be one."""
    done = call(stored, "witness", "run", "--tier", "a=h:1", "--tier", "a=h:2")
    assert done.returncode == 2
    assert "a name of its own" in done.stderr


def test_a_tier_may_be_an_archive(stored: Path) -> None:
    """In a directory, or in a catalog; a host of that name is none."""
    call(stored, "audit", "--witness")
    settings = load_config(stored / "bruce.toml")
    told = ["a=iceberg:/srv/lake", "b=iceberg:prod:lake.messages", "c=iceberg:9092/east."]
    lake, table, cluster = places_of(settings, told).values()
    assert (lake, table) == (LakePlace("/srv/lake"), LakePlace("", "prod", "lake.messages"))
    assert isinstance(cluster, Place)
    assert (cluster.properties["bootstrap.servers"], cluster.prefix) == ("iceberg:9092", "east.")


def test_without_a_witness_an_audit_says_so(stored: Path) -> None:
    """In one sentence, and 1 would say that something is lost."""
    done = call(stored, "audit", "--witness")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "no witness has run in this directory" in done.stderr


def test_an_audit_of_a_witness_that_saw_nothing(stored: Path) -> None:
    """It has not judged anything: that is neither complete nor a fault."""
    state = WitnessState(stored / "witness")
    state.tier("kafka")
    state.checkpoint()
    state.close()
    done = call(stored, "audit", "--witness")
    assert (done.returncode, done.stderr) == (UNREACHABLE, "")
    assert "has not seen these spools yet" in done.stdout


@pytest.mark.parametrize("option", [("--topic", "t"), ("--by", "hour"), ("--unstamped",)])
def test_it_has_no_dimensions(stored: Path, option: tuple[str, ...]) -> None:
    """A witness keeps sums, from which none can be told."""
    done = call(stored, "audit", "--witness", *option)
    assert done.returncode == 2
    assert "give --witness with SPOOL and --json alone" in done.stderr


def test_one_witness_writes_to_a_directory(stored: Path) -> None:
    """A second one ends with a sentence."""
    state = WitnessState(stored / "witness")
    done = call(stored, "witness", "run")
    state.close()
    assert done.returncode == 1
    assert "the directory of a witness" in done.stderr
