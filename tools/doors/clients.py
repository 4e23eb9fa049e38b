"""The programs, as they are built and started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tools.bruce_process import ROOT
from tools.kafka_install import fetch_jars

HERE = Path(__file__).parent
BUILT = ROOT / ".cache/doors"
BUILD_S = 600


class Missing(Exception):
    """This machine cannot run the client; the text says what it lacks."""


class Program(NamedTuple):
    """A client's program."""

    command: list[str]
    environ: Mapping[str, str] = {}
    headers: bool = True
    """Whether its records have the header."""


def _need(name: str) -> None:
    if shutil.which(name) is None:
        raise Missing(f"there is no {name}")


def _run(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    if done.returncode:
        raise Missing(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-300:]}")


def _place(name: str) -> Path:
    """A copy of a client's folder to build in."""
    place = BUILT / name
    shutil.copytree(HERE / name, place, dirs_exist_ok=True)
    return place


def _java() -> Program:
    _need("javac")
    jars, place = fetch_jars() / "*", _place("java")
    _run("javac", "-cp", jars, "-d", place, "Door.java", cwd=place)
    return Program(["java", "-cp", f"{place}:{jars}", "Door"])


def _python(name: str, module: str) -> Program:
    if find_spec(module) is None:
        raise Missing(f"Python has no {module}")
    return Program([sys.executable, str(HERE / name / "door.py")])


def _go(name: str) -> Program:
    _need("go")
    place = _place(name)
    _run("go", "build", "-o", "door", ".", cwd=place)
    return Program([str(place / "door")])


def _node(name: str, script: str) -> Program:
    _need("npm")
    place = _place(name)
    _run("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", cwd=place)
    return Program(["node", str(place / script)])


def _shell(name: str, needed: str) -> Program:
    root = os.environ.get("SYSLOG_NG_ROOT", "") if name == "syslog_ng" else ""
    if not root:
        _need(needed)
    return Program(["sh", str(HERE / name / "door.sh")], headers=False)


CLIENTS: dict[str, Callable[[], Program]] = {
    "java": _java,
    "confluent": lambda: _python("confluent", "confluent_kafka"),
    "kafka_python": lambda: _python("kafka_python", "kafka"),
    "aiokafka": lambda: _python("aiokafka", "aiokafka"),
    "kcat": lambda: _shell("kcat", "kcat"),
    "franz": lambda: _go("franz"),
    "sarama": lambda: _go("sarama"),
    "kafkajs": lambda: _node("kafkajs", "door.js"),
    "platformatic": lambda: _node("platformatic", "door.mjs"),
    "rsyslog": lambda: _shell("rsyslog", "rsyslogd"),
    "syslog_ng": lambda: _shell("syslog_ng", "syslog-ng"),
}
