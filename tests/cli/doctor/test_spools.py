"""The doctor's findings on spools: the configured one, and those without a daemon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.config.config import Config, load_config
from cli.doctor import Finding, Level
from cli.doctor.spools import AHEAD_NS, check_clock, look_at, look_for_others
from spool.read.overview import Overview, State
from spool.storage.lock import Lock
from tests.spool.fixture import SpoolFixture

NOW = 1_700_000_000 * 10**9


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A configuration for a spool that does not exist, with no other spool beside it."""
    return load_config(environ={"BRUCE_SPOOL_DIRECTORY": str(tmp_path / "spools" / "configured")})


def others(config: Config, tmp_path: Path) -> list[Finding]:
    """The findings about other spools, the default place being under `tmp_path`."""
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    return [one for one in look_for_others(config, environ) if str(tmp_path) in one.sentence]


def leave(directory: Path, messages: int) -> Path:
    """Make a spool under `directory` without a daemon; returns its directory."""
    directory.mkdir(parents=True)
    spool = SpoolFixture(directory)
    if messages:
        spool.fill(1, messages=messages)
    spool.stop()
    return spool.options.directory


@pytest.mark.parametrize("place", ["spools/older", "state"])
def test_a_spool_that_nobody_looks_after(tmp_path: Path, config: Config, place: str) -> None:
    """Beside the configured one or at the default place: with messages it is a problem."""
    made = leave(tmp_path / "elsewhere", 7)
    assert others(config, tmp_path) == []
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).mkdir()
    made = made.rename(tmp_path / place / "bruce") if place == "state" else made.rename(tmp_path / place)
    (found,) = others(config, tmp_path)
    assert found.level is Level.PROBLEM
    assert f"{made} is not the configured spool, and 7 messages" in found.sentence
    assert found.remedy == f"brucectl drain --spool {made}"


def test_a_spool_without_messages(tmp_path: Path, config: Config) -> None:
    """It only takes room; the configured spool, and one with a daemon, are not reported."""
    made = leave(tmp_path / "spools", 0)
    (found,) = others(config, tmp_path)
    assert (found.level, "all of it is delivered" in found.sentence) == (Level.ADVICE, True)
    held = Lock(made / "lock", "in use")
    assert others(config, tmp_path) == []
    held.release()
    own = load_config(environ={"BRUCE_SPOOL_DIRECTORY": str(made)})
    assert others(own, tmp_path) == []


def test_one_that_cannot_be_read(memory: Path) -> None:
    """A spool that cannot be read is named; a directory that the user may not list is skipped."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    config = load_config(environ={"BRUCE_SPOOL_DIRECTORY": str(memory / "configured")})
    made, hidden = leave(memory / "a", 7).rename(memory / "b"), memory / "hidden"
    hidden.mkdir(mode=0o700)
    made.chmod(0o755)
    (made / "segments").chmod(0o000)
    os.seteuid(65534)
    try:
        found = others(config, memory)
    finally:
        os.seteuid(0)
    assert [(one.level, f"{made} cannot be read" in one.sentence) for one in found] == [(Level.UNKNOWN, True)]


def test_the_configured_one(tmp_path: Path) -> None:
    """Without a daemon, the finding has the number of waiting messages; without a spool nothing is wrong."""
    assert look_at(tmp_path) == (None, look_at(tmp_path)[1])
    assert look_at(tmp_path)[1][0].level is Level.OK
    made = leave(tmp_path / "spools", 7)
    snapshot, (found,) = look_at(made)
    assert snapshot is not None
    assert (found.level, "7 messages wait" in found.sentence) == (Level.ADVICE, True)


def test_messages_from_the_future() -> None:
    """The finding says that the clock was set back."""
    one = Overview(Path("x"), State.SEALED, last_received_ns=NOW + AHEAD_NS + 1)
    (found,) = check_clock([one], NOW)
    assert (found.check, found.level) == ("clock", Level.ADVICE)
    assert list(check_clock([one], NOW + 1)) == []
    assert list(check_clock([], NOW)) == []
