"""`brucectl spark witness`: it goes on until it is stopped, and says why where it cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from dispatch.embedded import EmbeddedKafka
from tests.pipeline.witness.test_run import MESSAGES, Host
from tests.spark import Done
from tools.fleets.jobs import BRUCECTL
from tools.waiting import wait_until

pytestmark = pytest.mark.spark

PATIENCE_S = 120.0


@pytest.fixture
def host(tmp_path: Path, kafka: EmbeddedKafka) -> Host:
    """Its messages are delivered, by its marks; Kafka lacks one of them."""
    for one in range(3):
        kafka.topic(f"t{one}", 2)
    made = Host(tmp_path / "host")
    made.deliver(MESSAGES)
    made.send(kafka, (one for one in range(MESSAGES) if one != 77))
    return made


@pytest.fixture
def config(tmp_path: Path, kafka: EmbeddedKafka, host: Host) -> Path:
    """That of the host."""
    path = tmp_path / "bruce.toml"
    path.write_text(
        f'[spool]\ndirectory = "{host.path}"\n[kafka]\n"bootstrap.servers" = "{kafka.bootstrap_servers}"\n'
        f'[witness]\ndirectory = "{tmp_path / "witness"}"\n'
    )
    return path


def found(config: Path) -> dict[str, Any]:
    """The tier in the document of the witness; empty before there is one."""
    path = config.parent / "witness/witness.json"
    if not path.exists():
        return {}
    (tier,) = json.loads(path.read_text())["tiers"]
    assert isinstance(tier, dict)
    return tier


def missing(config: Path) -> int:
    """Messages."""
    return sum(one["missing"] for one in found(config).get("spools", []))


def test_until_it_is_stopped(job: Callable[..., Done], config: Path) -> None:
    """SIGTERM ends it with 0 and without a word, when all is written; what it found stays."""

    def stop_it() -> None:
        wait_until(lambda: missing(config) == 1, PATIENCE_S, "the witness to find it")
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = Thread(target=stop_it)
    watcher.start()
    done = job("witness", "--late", "0", "--config", config)
    watcher.join()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    tier = found(config)
    assert (tier["tier"], tier["records"], tier["lag"]) == ("kafka", MESSAGES - 1, 0)


def test_it_needs_a_directory(job: Callable[..., Done], tmp_path: Path) -> None:
    """The sentence says which key to set."""
    (tmp_path / "bruce.toml").write_text('[kafka]\n"bootstrap.servers" = "127.0.0.1:1"\n')
    done = job("witness", tmp_path, "--config", tmp_path / "bruce.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "set [witness] directory in bruce.toml" in done.stderr


@pytest.mark.long
@pytest.mark.usefixtures("requirements")
def test_the_death_of_spark(config: Path) -> None:
    """Of its JVM ends the command, at last with a sentence; another goes on, and counts no record twice."""
    command = [*BRUCECTL, "spark", "witness", "--late", "0", "--config", str(config), "--master", "local[2]"]
    for signal_, code in ((signal.SIGKILL, 4), (signal.SIGTERM, 0)):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as witness:
            try:
                wait_until(lambda: missing(config) == 1, PATIENCE_S, "the witness to find it")
                child = psutil.Process(witness.pid)
                if code:
                    (child,) = child.children()
                    (config.parent / "witness/witness.json").unlink()
                child.send_signal(signal_)
                out, err = witness.communicate(timeout=PATIENCE_S)
            finally:
                witness.kill()
        assert (witness.returncode, out) == (code, ""), err
        # PySpark's own server of accumulators says that it is alone, too.
        assert [line for line in err.splitlines()[-1:] if "Spark's process has ended" in line] or not code
        assert code or not err
    assert found(config)["records"] == MESSAGES - 1
