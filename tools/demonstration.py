"""The demo: one run of the main job that a newcomer can watch, with its two disasters.

The Kafka is the embedded one, in a process of its own, so that it can be taken down and bruce can be
killed without it. Everything shown is read from `brucectl status`; the count at the end is made by the
Spark job `brucectl spark audit`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from cli.status.snapshot import take_snapshot
from dispatch.embedded import EmbeddedKafka
from spool.errors import NoSpool
from status.report import Snapshot

HOME = Path(".cache/demo")
TOPICS = ("orders", "clicks", "metrics")
PARTITIONS = 12
RATE = 4_000
"""Messages a second: little for bruce, and small enough for the embedded Kafka to keep them all."""
DEADLINE_S = 90.0

console = Console(highlight=False, soft_wrap=True)


class Daemon:
    """`bruce run`, and beside it `bruce hold-socket`, which keeps the socket while the daemon is dead."""

    def __init__(self, config: Path) -> None:
        self._config = str(config)
        self._log = (HOME / "bruce.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self._holder = self._run("hold-socket")

    def start(self) -> None:
        """Start it, and wait until it takes messages in."""
        self._process = self._run("run", "--held")
        wait("bruce to start", self._runs)

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [program("bruce"), *command, "--config", self._config], stderr=self._log, stdout=self._log
        )

    def _runs(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"bruce ended with {self._process.returncode}; see {HOME}/bruce.log")
        now = status()
        return now is not None and bool(now.workers)

    def kill(self) -> None:
        """SIGKILL all of its processes at once: the workers die with the supervisor."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """A clean end, of the holder last."""
        for process in (self._process, self._holder):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def program(name: str) -> str:
    """A program of this environment."""
    return str(Path(sys.executable).parent / name)


def status() -> Snapshot | None:
    """The figures of `brucectl status`; None while there is no spool."""
    try:
        return take_snapshot(HOME.resolve() / "spool")
    except NoSpool:
        return None


def wait(what: str, done: Callable[[], bool]) -> None:
    """Wait for something that must come. Raises TimeoutError."""
    end = time.monotonic() + DEADLINE_S
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {DEADLINE_S:.0f} s for {what}; see {HOME}/bruce.log")
        time.sleep(0.1)


def say(sentence: str) -> None:
    """A step of the story."""
    console.print(f"\n[bold]{sentence}[/bold]")


def show() -> None:
    """One line of figures."""
    now = status()
    assert now is not None
    discarded = sum(now.discarded.values())
    states = ", ".join(f"{broker.id} {broker.state}" for broker in now.brokers) or "none known"
    balance = now.received == now.delivered + discarded + now.backlog
    console.print(
        f"  received {now.received:>7,} = delivered {now.delivered:>7,} + discarded {discarded:,} "
        f"+ backlog {now.backlog:>7,} {'' if balance else '(DOES NOT ADD UP) '}| brokers: {states}",
    )


def watch(times: int) -> None:
    """Show the figures for a while."""
    for _ in range(times):
        time.sleep(1)
        show()


@contextmanager
def traffic(socket_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Programs that send: a process that counts each message the socket took."""
    sender = subprocess.Popen(
        [sys.executable, "-m", "tools.demo_sender", str(socket_path), str(HOME / "sent.json"), str(RATE)]
    )
    try:
        yield sender
    finally:
        sender.terminate()
        sender.wait(10)


def write_config(servers: str) -> Path:
    """The whole configuration of this bruce."""
    config = HOME / "bruce.toml"
    config.write_text(
        f'[ingest]\ndatagram_socket = "{HOME.resolve()}/bruce.sock"\n\n'
        f'[spool]\ndirectory = "{HOME.resolve()}/spool"\nmax_bytes = "512MiB"\nsegment_bytes = "8MiB"\n\n'
        f'[kafka]\n"bootstrap.servers" = "{servers}"\n"reconnect.backoff.max.ms" = "500"\n'
    )
    return config


def story(kafka: EmbeddedKafka, daemon: Daemon) -> int:
    """Run the story; how many messages were sent."""
    daemon.start()
    with traffic(HOME / "bruce.sock"):
        wait("the first message", lambda: (now := status()) is not None and now.received > 0)
        say(f"1. Programs write {RATE:,} datagrams a second to a UNIX socket; bruce delivers them to Kafka.")
        watch(4)
        say("2. Kafka goes away: all three brokers. The programs do not notice; the backlog grows on disk.")
        kafka.down()
        watch(5)
        say("3. bruce is killed with SIGKILL, every process of it, and started again. Kafka is still away.")
        daemon.kill()
        console.print("  killed; bruce hold-socket keeps the socket open: the programs wait for a moment")
        daemon.start()
        watch(4)
        say("4. Kafka comes back: the backlog goes out, in order, while new messages come in.")
        kafka.up()
        watch(6)
    sent = int(json.loads((HOME / "sent.json").read_text())["sent"])
    say("5. The programs stop. brucectl drain waits until everything is delivered.")
    subprocess.run([program("brucectl"), "drain", "--config", str(HOME / "bruce.toml")], check=True)
    show()
    return sent


def audit(servers: str) -> int:
    """The count: a Spark job compares every message in the spool with the records in Kafka."""
    return subprocess.run(
        [program("brucectl"), "spark", "audit", str(HOME / "spool"), "--bootstrap-servers", servers],
        env={**os.environ, "COLUMNS": "120"},
        check=False,
    ).returncode


def main() -> int:
    """Run the demo; 0 when nothing is missing."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    started = time.monotonic()
    with EmbeddedKafka(brokers=3, topics=[(topic, PARTITIONS) for topic in TOPICS]) as kafka:
        daemon = Daemon(write_config(kafka.bootstrap_servers))
        try:
            sent = story(kafka, daemon)
            now = status()
            received = now.received if now else 0
            say("6. A Spark job reads the spool and Kafka, and compares them message by message.")
            code = audit(kafka.bootstrap_servers)
        finally:
            daemon.stop()
    good = code == 0 and sent == received
    verdict = "Nothing is missing" if good else "SOMETHING IS MISSING"
    seconds = time.monotonic() - started
    say(f"{verdict}: {sent:,} messages sent, {received:,} received. It took {seconds:.0f} s.")
    console.print(
        f"Look at {HOME}: bruce.toml, bruce.log, and the spool (brucectl status --spool {HOME}/spool)."
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
