"""`brucectl doctor`: the command, on a host with a daemon and on one without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from cli.commands.doctor import _show_plan
from cli.doctor import Finding, Level
from cli.doctor.examination import Examination
from cli.doctor.plan import Compression, Load, Plan
from cli.terminal.clashes import HOME
from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.cli.program import run
from tests.daemon import RunningBruce
from tests.status.test_witness import spool, tier, write


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
    """A line for each check with its remedy, or one document; exit code 1 if a check finds a problem."""
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


def test_a_problem_is_said_once() -> None:
    """The daemon's trouble and the doctor's own finding, also at another broker; in JSON as in the text."""
    told = [
        Finding(check, Level.PROBLEM, f"no broker can be reached ({at}: refused): start Kafka")
        for check, at in (("daemon", "a:1"), ("kafka", "b:1"))
    ]
    with mock.patch.object(Examination, "findings", return_value=iter(told)):
        assert run("doctor").stdout == f"problem\t{told[0].sentence}\n"
    with mock.patch.object(Examination, "findings", return_value=iter(told)):
        document = run("doctor", "--json")
    assert [one["check"] for one in json.loads(document.stdout)["findings"]] == ["daemon"]
    assert document.returncode == 1


def examined(bruce: RunningBruce, *more: str) -> dict[str, object]:
    """The document that doctor prints on the host of this daemon."""
    environ = {"BRUCE_RUNTIME_DIRECTORY": str(bruce.runtime)}
    document: dict[str, object] = json.loads(
        run("doctor", "--json", "--config", bruce.config, *more, environ=environ).stdout
    )
    return document


def levels(document: dict[str, object], check: str) -> list[str]:
    """The levels of the findings of one check."""
    found = document["findings"]
    assert isinstance(found, list)
    return [one["level"] for one in found if one["check"] == check]


def test_a_host_with_a_daemon(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Doctor finds nothing wrong; without Kafka, it reports once what the daemon and Kafka state."""
    well = examined(bruce)
    assert (levels(well, "daemon"), levels(well, "kafka")) == (["ok"], ["ok"])
    assert levels(well, "permissions") == ["ok"]
    kafka.down()
    bruce.send([encode(b"t", b"v")])
    bruce.await_status(lambda status: status.trouble is not None)
    ill = examined(bruce)
    assert (levels(ill, "daemon"), levels(ill, "kafka"), ill["ok"]) == (["problem"], [], False)


def test_a_host_with_a_witness(bruce: RunningBruce, tmp_path: Path) -> None:
    """Doctor asks the configured witness; a message that is missing is a problem."""
    assert levels(examined(bruce), "witness") == []
    bruce.configure({"witness": {"directory": str(tmp_path / "w")}})
    write(tmp_path / "w", tier("main", spool()))
    assert levels(examined(bruce), "witness") == ["ok"]
    write(tmp_path / "w", tier("main", spool(missing=1)))
    found = examined(bruce)
    assert (levels(found, "witness"), found["ok"]) == (["problem"], False)


def test_a_plan_by_what_has_come_in(bruce: RunningBruce) -> None:
    """With messages, doctor prints a plan for the segment in use; without any, it says so."""
    nothing = examined(bruce, "--plan")
    assert (nothing["plan"], levels(nothing, "plan")) == (None, ["unknown"])
    bruce.send([encode(b"t", b"v" * 1000)] * 100)
    bruce.await_status(lambda status: status.watermarks.synced == 100)
    plan = examined(bruce, "--plan")["plan"]
    assert isinstance(plan, dict)
    assert set(plan["mean"]) == set(plan["busiest_hour"])
    assert 0 < plan["left_bytes"] < plan["room_bytes"]
    said = run("doctor", "--plan", "--config", bruce.config).stdout
    assert "hours of outage per GiB of disk\t" in said
    assert "\nReckoned from " in said
    assert "That is little: ask again when it has a day." in said


def test_a_plan_has_sizes_with_the_unit_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """At any rate: hundreds of MiB a second are no six digits of KiB."""
    mean, busiest = Load(10, 34_668_544, 0.01, 0.125, 0.1), Load(20, 512, 3, 4, 5)
    _show_plan(Plan(86_400.0, Compression(0.5, "packed"), 4 << 30, 1 << 30, mean, busiest))
    rows = dict(line.split("\t", 1) for line in capsys.readouterr().out.splitlines() if "\t" in line)
    assert rows["bytes a second"] == "33.1 MiB\t512 bytes"
    assert rows["hours of outage, whole spool, 4 GiB"] == "0.12\t4"


def test_nothing_is_changed(tmp_path: Path) -> None:
    """Doctor creates nothing, neither at the path of a spool nor elsewhere."""
    file = tmp_path / "bruce.toml"
    file.write_text(
        f'[spool]\ndirectory = "{tmp_path / "spool"}"\n[kafka]\n"bootstrap.servers" = "embedded"\n'
    )
    assert run("doctor", "--plan", "--config", file).returncode == 0
    assert list(tmp_path.iterdir()) == [file]
