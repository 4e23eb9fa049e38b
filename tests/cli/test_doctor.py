"""`brucectl doctor`: the command, on a host with a daemon and on one without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from cli.clashes import HOME
from cli.doctor.examination import Examination
from cli.doctor.finding import Finding, Level
from dispatch.embedded import EmbeddedKafka
from spool.wire import encode
from tests.cli.program import run
from tests.daemon import RunningBruce


@pytest.mark.parametrize("hidden", ["status", "spool"])
def test_a_program_whose_packages_are_hidden_says_so(tmp_path: Path, hidden: str) -> None:
    """Instead of a traceback: one sentence with both places, and exit code 2."""
    (tmp_path / f"{hidden}.py").touch()
    code = f"import sys; sys.path.append({HOME!r}); from cli.start import brucectl; brucectl()"
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor"],
        cwd="/",
        env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"the package {hidden} in {tmp_path} hides that of bruce, in {HOME}: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("level", "code"), [("ok", 0), ("advice", 0), ("unknown", 0), ("problem", 1)])
def test_what_is_printed(level: str, code: int) -> None:
    """A line a check with its remedy, or one document; exits with 1 when one of them is a problem."""
    found = [Finding("a", Level.OK, "fine"), Finding("b", Level(level), "so it is", "do this")]
    with mock.patch.object(Examination, "findings", return_value=iter(found)):
        said = run("doctor")
    with mock.patch.object(Examination, "findings", return_value=iter(found)):
        document = run("doctor", "--json")
    assert (said.returncode, document.returncode) == (code, code)
    assert said.stdout == f"ok\tfine\n{level}\tso it is; do this\n"
    assert json.loads(document.stdout) == {
        "version": 2,
        "ok": code == 0,
        "findings": [
            {"check": "a", "level": "ok", "sentence": "fine", "remedy": ""},
            {"check": "b", "level": level, "sentence": "so it is", "remedy": "do this"},
        ],
        "plan": None,
    }


def examined(bruce: RunningBruce, *more: str) -> dict[str, object]:
    """The document of a host where this is the daemon."""
    environ = {"BRUCE_RUNTIME_DIRECTORY": str(bruce.runtime)}
    document: dict[str, object] = json.loads(
        run("doctor", "--json", "--config", bruce.config, *more, environ=environ).stdout
    )
    return document


def levels(document: dict[str, object], check: str) -> list[str]:
    """Of the findings of one check."""
    found = document["findings"]
    assert isinstance(found, list)
    return [one["level"] for one in found if one["check"] == check]


def test_a_host_with_a_daemon(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Nothing is wrong with it; with Kafka away, the daemon's own words and Kafka's are problems."""
    well = examined(bruce)
    assert (levels(well, "daemon"), levels(well, "kafka")) == (["ok"], ["ok"])
    assert levels(well, "permissions") == ["ok"]
    kafka.down()
    bruce.send([encode(b"t", b"v")])
    bruce.await_status(lambda status: status.trouble is not None)
    ill = examined(bruce)
    assert (levels(ill, "daemon"), levels(ill, "kafka"), ill["ok"]) == (["problem"], ["problem"], False)


def test_a_plan_by_what_has_come_in(bruce: RunningBruce) -> None:
    """With messages there is one, of the segment in use; without any, a word about it."""
    nothing = examined(bruce, "--plan")
    assert (nothing["plan"], levels(nothing, "plan")) == (None, ["unknown"])
    bruce.send([encode(b"t", b"v" * 1000)] * 100)
    bruce.await_status(lambda status: status.watermarks.synced == 100)
    plan = examined(bruce, "--plan")["plan"]
    assert isinstance(plan, dict)
    assert set(plan["mean"]) == set(plan["busiest_hour"])
    assert 0 < plan["left_bytes"] < plan["room_bytes"]
    assert "hours of outage per GiB of disk\t" in run("doctor", "--plan", "--config", bruce.config).stdout


def test_nothing_is_changed(tmp_path: Path) -> None:
    """Not where a spool would be, and not where none is."""
    file = tmp_path / "bruce.toml"
    file.write_text(
        f'[spool]\ndirectory = "{tmp_path / "spool"}"\n[kafka]\n"bootstrap.servers" = "embedded"\n'
    )
    assert run("doctor", "--plan", "--config", file).returncode == 0
    assert list(tmp_path.iterdir()) == [file]
