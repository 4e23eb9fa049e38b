"""`brucectl spark drain`: what it says, and its exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.errors import SpoolBusy
from spool.storage.lock import Lock
from tests.pipeline.delivery.test_drain import fill
from tests.spool.fixture import SpoolFixture
from tools.waiting import wait_until

BRUCECTL = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]


@pytest.mark.long
@pytest.mark.spark
def test_the_command(kafka: EmbeddedKafka, spool: SpoolFixture, tmp_path: Path) -> None:
    """`brucectl spark drain`: a document of what was done, and 1 while something is left."""
    fill(spool, 60)
    config = tmp_path / "bruce.toml"
    config.write_text(f'[kafka]\n"bootstrap.servers" = "{kafka.bootstrap_servers}"\n')
    command = [*BRUCECTL, "spark", "drain", str(spool.options.directory), "--config", str(config)]
    kafka.down(-1)
    short = subprocess.run(
        [*command, "--timeout", "1"], capture_output=True, text=True, check=False, timeout=300
    )
    assert short.returncode == 3, short.stderr
    kafka.up(-1)
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["messages"], found["delivered"], found["left"]) == (60, 60, 0)
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert again.stdout.startswith("drained: 0 of 0 messages delivered")


@pytest.mark.usefixtures("requirements")
def test_an_interrupt_before_spark_is_up(spool: SpoolFixture) -> None:
    """While it waits for a daemon that does not lend delivery, Control-C ends it with a sentence."""
    spool.crash()
    owner = Lock(spool.layout.owner, "delivering")
    command = [
        *BRUCECTL,
        "spark",
        "drain",
        str(spool.options.directory),
        "--bootstrap-servers",
        "127.0.0.1:1",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: is_asked_for(spool), 60, "the drain to ask for delivery")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        owner.release()
    assert (process.returncode, out) == (130, "")
    assert err == "interrupted: the job has not come to its end; the same command may be given again\n"


def is_asked_for(spool: SpoolFixture) -> bool:
    """Whether a job holds the lock of the lease."""
    try:
        Lock(spool.layout.lease, "looking", patience_s=0).release()
    except SpoolBusy:
        return True
    except FileNotFoundError:
        pass
    return False
