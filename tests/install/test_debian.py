"""The Debian package on a machine with a systemd: installed, running, restarted, upgraded, purged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.install.machine import ENVIRON, PATIENCE_S, Machine, demand
from tools.debian import build

pytestmark = pytest.mark.long

PYTHON = "/usr/lib/bruce/bin/python"
CONFIG = "/etc/bruce/bruce.toml"
SECRET = "hunter2 of Kafka"
PARTITIONS = 2
DROP_IN = """\
[Service]
WatchdogSec=8
LoadCredential=kafka-password:/etc/bruce/kafka-password
"""
CONFIGURED = """\
[ingest]
datagram_socket = "/run/bruce/bruce.sock"
[dispatch]
drain_seconds = 0
[status]
port = 0
[kafka]
"bootstrap.servers" = "{servers}"
"sasl.password.credential" = "kafka-password"
"""
CHANGED_BY_DPKG = (
    *("var/lib/dpkg/", "var/log/", "var/cache/debconf", "var/cache/man"),
    *("etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "etc/subuid", "etc/subgid", "etc/.pwd.lock"),
)
SEND = """
import os, socket, time
from spool.format.wire import encode
os.setuid(65534)
sender, sent = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), 0
sender.connect("/run/bruce/bruce.sock")
while not os.path.exists("/tmp/enough"):
    sender.send(encode(b"orders", b"%d" % sent))
    sent += 1
    time.sleep(0.002)
print(sent)
"""
CONSUME = """
import sys
from confluent_kafka import Consumer, TopicPartition
servers, partitions, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "log_level": 0})
consumer.assign([TopicPartition("orders", partition, 0) for partition in range(partitions)])
seen = set()
while len(seen) < wanted and (records := consumer.consume(1000, 5.0)):
    seen |= {int(record.value()) for record in records if not record.error()}
print(len(seen), len(seen - set(range(wanted))))
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two releases."""
    demand()
    place = tmp_path_factory.mktemp("deb")
    return build(place, "0.1.0"), build(place, "0.2.0")


def install(machine: Machine, package: Path) -> None:
    """As an operator does it; without the triggers of other packages."""
    machine.bring(package, "/tmp/bruce.deb")
    machine.run("dpkg", "--no-triggers", "--install", "/tmp/bruce.deb")
    machine.run("rm", "/tmp/bruce.deb")


@pytest.fixture(scope="module")
def machine(packages: tuple[Path, Path]) -> Iterator[Machine]:
    """A running machine with the first release on it."""
    with Machine(systemd=True) as made:
        install(made, packages[0])
        made.await_true(lambda: made.show("bruce.service", "ActiveState") == ["active"])
        yield made


class Load:
    """A Kafka and a sender on a machine whose bruce delivers to it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._kafka = self._start(
            PYTHON, "-m", "dispatch.embedded", "--brokers", "1", "--topic", f"orders:{PARTITIONS}"
        )
        assert self._kafka.stdout
        self._servers = self._kafka.stdout.readline().strip()
        self._sender: subprocess.Popen[str] | None = None

    def _start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._machine.command(*command),
            env=ENVIRON,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        machine = self._machine
        machine.run("rm", "-f", "/tmp/enough")
        machine.write("/etc/bruce/kafka-password", SECRET)
        machine.run("chmod", "600", "/etc/bruce/kafka-password")
        machine.write("/etc/systemd/system/bruce.service.d/test.conf", DROP_IN)
        machine.write(CONFIG, CONFIGURED.format(servers=self._servers))
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "stop", "bruce.service")
        machine.run("sh", "-c", "rm -rf /var/lib/bruce/*")
        # No unit has started bruce: the first datagram does.
        self._sender = self._start(PYTHON, "-c", SEND)
        machine.await_true(lambda: machine.show("bruce.service", "ActiveState") == ["active"])
        return self

    def status(self) -> dict[str, object]:
        """The output of `brucectl status --json`."""
        found: dict[str, object] = json.loads(self._machine.tell("brucectl", "status", "--json"))
        return found

    def worker(self, role: str) -> int:
        """Its pid, as the machine has it."""
        workers = self.status()["workers"]
        assert isinstance(workers, list)
        return int(next(worker["pid"] for worker in workers if worker["role"] == role))

    def await_more(self, count: int = 200) -> None:
        """So many more are delivered."""
        aim = int(str(self.status()["delivered"])) + count
        self._machine.await_true(lambda: int(str(self.status()["delivered"])) >= aim)

    def check_complete(self) -> None:
        """Each message that was sent is in Kafka, and the totals say so."""
        self._machine.write("/tmp/enough", "")
        assert self._sender
        sent = int(self._sender.communicate(timeout=PATIENCE_S)[0])
        assert self._sender.returncode == 0
        self._machine.await_true(lambda: (self.status()["received"], self.status()["backlog"]) == (sent, 0))
        told = self._machine.run(PYTHON, "-c", CONSUME, self._servers, PARTITIONS, sent)
        assert told == f"{sent} 0"

    def __exit__(self, *_: object) -> None:
        # The programs that we started only entered the machine; those that run there end by what they wait
        # for.
        self._machine.write("/tmp/enough", "")
        for process in (self._sender, self._kafka):
            if process:
                process.communicate(timeout=PATIENCE_S)


def test_it_runs_unprivileged(machine: Machine) -> None:
    """As a user of its own, with no capability, no way to any, few system calls; its socket is for all."""
    (pid,) = machine.show("bruce.service", "MainPID")
    told = dict(line.split(":\t", 1) for line in machine.run("cat", f"/proc/{pid}/status").splitlines())
    assert told["Uid"].split() == [machine.run("id", "-u", "bruce")] * 4
    assert (int(told["CapEff"], 16), int(told["CapBnd"], 16), told["NoNewPrivs"], told["Seccomp"]) == (
        0,
        0,
        "1",
        "2",
    )
    assert machine.run("stat", "-c", "%a %F", "/run/bruce/bruce.sock") == "666 socket"
    assert machine.run("stat", "-c", "%a %U", "/var/lib/bruce") == "750 bruce"
    assert machine.run("cat", "/proc/sys/net/unix/max_dgram_qlen") == "512"
    (told_status,) = machine.show("bruce.service", "StatusText")
    assert told_status


def test_what_a_user_calls_is_there(machine: Machine) -> None:
    """Programs, manual pages, completions; the environment is bruce's own."""
    assert "/usr/share/man/man8/bruce.8.gz" in machine.run("man", "--where", "8", "bruce")
    assert machine.try_("brucectl", "--help").returncode == 0
    findings = machine.tell("brucectl", "doctor")
    assert "/usr/lib/bruce/lib/python" in findings
    assert "net.unix.max_dgram_qlen is 512" in findings
    assert machine.run("dpkg", "--verify", "bruce") == ""


@pytest.mark.crash
@pytest.mark.long
def test_nothing_is_lost_by_restarts_of_all_kinds(machine: Machine, packages: tuple[Path, Path]) -> None:
    """Started by a datagram; restarted, killed, hung, and upgraded under load: every message is in Kafka.

    Kafka's password is a credential, and in no process's environment or command line.
    """
    with Load(machine) as load:
        load.await_more()
        (pid,) = machine.show("bruce.service", "MainPID")
        told = machine.run("sh", "-c", f"cat /proc/{pid}/environ /proc/{pid}/cmdline; cat {CONFIG}")
        assert SECRET not in told

        machine.run("systemctl", "restart", "bruce.service")
        load.await_more()
        machine.run("systemctl", "kill", "--signal=SIGKILL", "bruce.service")
        machine.await_true(
            lambda: machine.show("bruce.service", "ActiveState", "NRestarts") == ["active", "1"]
        )
        load.await_more()

        before = machine.show("bruce.service", "MainPID")
        machine.run("kill", f"-{signal.SIGSTOP.value}", load.worker("keeper"))
        machine.await_true(
            lambda: machine.show("bruce.service", "ActiveState", "NRestarts") == ["active", "2"]
        )
        assert machine.show("bruce.service", "MainPID") != before
        journal = machine.tell("journalctl", "--no-pager", "--unit=bruce.service")
        assert "Watchdog timeout" in journal, journal
        load.await_more()

        machine.run("systemctl", "reload", "bruce.service")
        machine.await_true(lambda: machine.show("bruce.service", "ActiveState") == ["active"])
        before = machine.show("bruce.service", "MainPID")
        configured = machine.run("cat", CONFIG)
        install(machine, packages[1])
        assert "0.2.0" in machine.run("dpkg-query", "--show", "bruce")
        assert machine.run("cat", CONFIG) == configured, "the package changed a setting"
        assert machine.show("bruce.service", "MainPID") != before
        load.await_more()
        load.check_complete()


def test_a_purge_leaves_nothing_but_the_spool(packages: tuple[Path, Path]) -> None:
    """A purge without systemd, as in a container; a reinstallation owns the spool again."""
    with Machine(systemd=False) as machine:
        install(machine, packages[0])
        assert machine.run("stat", "-c", "%U", "/var/lib/bruce") == "bruce"
        machine.write("/var/lib/bruce/segments/1.seg", "messages that Kafka does not have")
        machine.run("brucectl", "config", "show")
        machine.run("dpkg", "--no-triggers", "--remove", "bruce")
        assert machine.run("cat", CONFIG), "a removal leaves what was set"
        machine.run("dpkg", "--no-triggers", "--purge", "bruce")
        assert sorted(left(machine)) == ["var/lib/bruce/segments/1.seg"]
        assert machine.run("stat", "-c", "%U", "/var/lib/bruce/segments/1.seg") == "root"
        assert not machine.tell("getent", "passwd", "bruce")
        install(machine, packages[0])
        assert machine.run("stat", "-c", "%U", "/var/lib/bruce/segments/1.seg") == "bruce"
        machine.run("rm", "-r", "/var/lib/bruce/segments")
        machine.run("dpkg", "--no-triggers", "--purge", "bruce")
        assert not list(left(machine))
        assert machine.try_("test", "-e", "/var/lib/bruce").returncode == 1, "an empty one is no spool"


def left(machine: Machine) -> Iterator[str]:
    """The files made that are still there, as paths from the root; without those of every installation."""
    for folder, folders, files in os.walk(machine.upper):
        made = not folders and not files and not Path("/", os.path.relpath(folder, machine.upper)).exists()
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for path in [Path(folder, name) for name in files + links] + [Path(folder)] * made:
            found = str(path.relative_to(machine.upper))
            # A character device marks a file of the host that was removed here.
            if not path.is_char_device() and not found.startswith(CHANGED_BY_DPKG):
                yield found
