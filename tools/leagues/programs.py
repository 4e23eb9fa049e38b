"""The programs of the league: bruce, rsyslog, syslog-ng, and the OpenTelemetry Collector."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from tools.benches.machine import Skipped
from tools.benches.peers import check_configuration, find_program
from tools.bruce_process import Bruce
from tools.leagues.peer import Counted, Daemon, Peer
from tools.leagues.sender import Channel, Datagrams, Requests, as_bruce, as_syslog

SMALL_SEGMENT = "4MiB"
STATS_S = 1.2
"""rsyslog writes its counters each second."""
ASK_S = 5.0
_WAITING, _FAILED = "otelcol_exporter_queue_size{", "otelcol_exporter_send_failed_log_records"


class Ours(Peer):
    """bruce with its defaults, its socket held as by systemd or `bruce hold-socket`."""

    name = "bruce"
    remark = "defaults; its socket is held"
    held = True
    spool: ClassVar[dict[str, object]] = {}

    def prepare(self) -> None:
        spool: dict[str, object] = {"directory": str(self.setting.disk), **self.spool}
        if self.setting.small:
            spool["segment_bytes"] = SMALL_SEGMENT
        self._bruce = Bruce(
            self.setting.place, self.setting.bootstrap, settings={"spool": spool}, listener=self.listener
        )
        self._bruce.spool = self.setting.disk
        self.socket = self._bruce.socket

    @property
    def pid(self) -> int:
        return self._bruce.pid

    def version(self) -> str:
        command = [sys.executable, "-c", "from cli.app import bruce; bruce()", "--version"]
        ran = subprocess.run(command, env=self._bruce.environ, capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    def configuration(self) -> Path:
        return self._bruce.config

    def start(self) -> None:
        self._bruce.start()

    def kill(self) -> None:
        self._bruce.kill_all()

    def stop(self) -> None:
        self._bruce.stop()

    def connect(self) -> Channel:
        return Datagrams(self.socket, as_bruce)

    def counted(self) -> Counted:
        try:
            status = self._bruce.status()
        except (RuntimeError, subprocess.TimeoutExpired, json.JSONDecodeError):
            return Counted()
        return Counted(status["backlog"], sum(status["discarded"].values()))

    def close(self) -> None:
        self._bruce.close()
        super().close()


class Unheld(Ours):
    """bruce that opens its socket itself: a kill takes what is in the socket's queue."""

    name = "bruce-unheld"
    remark = "defaults; it opens its socket itself"
    cases = ("kill", "away", "restart")
    held = False


class Blocking(Ours):
    """bruce that lets senders wait while its spool is full."""

    name = "bruce-block"
    remark = 'when_full = "block"; its socket is held'
    cases = ("disk",)
    spool: ClassVar[dict[str, object]] = {"when_full": "block"}


class Rsyslog(Daemon):
    """rsyslogd with omkafka and a disk-assisted queue."""

    name = "rsyslog"
    remark = "disk-assisted queues; its socket is held"
    template = "rsyslog.conf"
    held = True

    def prepare(self) -> None:
        program = find_program("rsyslogd", "rsyslog rsyslog-kafka")
        self.write()
        check_configuration([program, "-N1", "-f", self.configuration()], self.name)
        self._program, pid_file = program, self.setting.place / "pid"
        self.command = [str(program), "-n", "-f", str(self.configuration()), "-i", str(pid_file)]

    def version(self) -> str:
        return _first_line([self._program, "-v"])

    def before_start(self) -> None:
        (self.setting.place / "pid").unlink(missing_ok=True)
        self._stats.unlink(missing_ok=True)

    def ready(self) -> bool:
        return (self.setting.place / "pid").exists() and self.socket.exists()

    def connect(self) -> Channel:
        return Datagrams(self.socket, as_syslog)

    @property
    def _stats(self) -> Path:
        return self.setting.place / "stats"

    def counters(self) -> Counted:
        """The last of each queue: its size, and what it discarded because it was full."""
        time.sleep(STATS_S)
        last: dict[str, dict[str, Any]] = {}
        for line in self._stats.read_text().splitlines():
            if "core.queue" in line:
                found = json.loads(line[line.index("{") :])
                last[found["name"]] = found
        discarded = sum(queue["discarded.full"] + queue["discarded.nf"] for queue in last.values())
        return Counted(sum(queue["size"] for queue in last.values()), discarded)


class RsyslogDisk(Rsyslog):
    """rsyslogd with omkafka and queues that are on disk only."""

    name = "rsyslog-disk"
    remark = "queues on disk only; its socket is held"
    template = "rsyslog-disk.conf"


class SyslogNg(Daemon):
    """syslog-ng with kafka-c and a reliable disk buffer."""

    name = "syslog-ng"
    remark = "reliable disk buffer"
    template = "syslog-ng.conf"

    def prepare(self) -> None:
        program = find_program("syslog-ng", "syslog-ng-core syslog-ng-mod-rdkafka")
        modules = max(program.parents[2].glob("usr/lib/syslog-ng/[0-9]*"))
        self.environ = {**os.environ, "LD_LIBRARY_PATH": str(modules.parent)}
        self.write(VERSION=modules.name)
        place = self.setting.place
        files = [f"--{kind}={place / kind}" for kind in ("persist-file", "pidfile")]
        files.append(f"--control={self._control}")
        command = [program, "-F", "--no-caps", f"--module-path={modules}", "-f", self.configuration(), *files]
        check_configuration([*command, "-s"], self.name, self.environ)
        self._program, self.command = program, [str(word) for word in command]

    @property
    def _control(self) -> Path:
        return self.runtime / "control"

    def version(self) -> str:
        return _first_line([self._program, "-V"], self.environ)

    def before_start(self) -> None:
        self._control.unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)

    def ready(self) -> bool:
        return self._control.exists() and self.socket.exists()

    def connect(self) -> Channel:
        return Datagrams(self.socket, as_syslog)

    def counters(self) -> Counted:
        """The destinations' queued and dropped messages."""
        control = self._program.with_name("syslog-ng-ctl")
        said = subprocess.run(
            [control, "stats", "-c", self._control],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        ).stdout
        found = {"queued": 0, "dropped": 0}
        for line in said.splitlines():
            source, *_, kind, number = line.split(";")
            if source == "dst.kafka" and kind in found:
                found[kind] += int(number)
        return Counted(found["queued"], found["dropped"])


class SyslogNgSync(SyslogNg):
    """syslog-ng that waits for Kafka's confirmation of each batch."""

    name = "syslog-ng-sync"
    remark = "reliable disk buffer; each batch is a transaction"
    template = "syslog-ng-sync.conf"


def _first_line(command: list[object], environ: Mapping[str, str] | None = None) -> str:
    ran = subprocess.run(
        [str(word) for word in command], env=environ, capture_output=True, text=True, check=True
    )
    return " ".join(ran.stdout.splitlines()[0].removesuffix("compiled with:").split())


class Collector(Daemon):
    """otelcol with the exporter for Kafka and a queue in file_storage."""

    name = "otelcol"
    remark = "queue in file_storage, synced; requests of 100 messages over HTTP"
    template = "otelcol.yaml"

    def prepare(self) -> None:
        found = shutil.which("otelcol")
        if not found:
            raise Skipped("otelcol is not in PATH (build it: configurations/otelcol-builder.yaml)")
        self._program = Path(found)
        self._ports = _free_ports(3)
        one, other, metrics = self._ports
        self.write(PORT=one, OTHER_PORT=other, METRICS=metrics)
        self.command = [str(self._program), "--config", str(self.configuration())]
        check_configuration([self._program, "validate", *self.command[1:]], self.name)

    def version(self) -> str:
        ran = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=True)
        return ran.stdout.strip()

    def ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._ports[0])) == 0

    def connect(self) -> Channel:
        return Requests({self.setting.topic: self._ports[0], self.setting.other: self._ports[1]})

    def counters(self) -> Counted:
        """The exporters' queues, and what they gave up. A message that it refuses is not accepted."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[2]}/metrics", timeout=ASK_S) as answer:
            lines = answer.read().decode().splitlines()
        return Counted(_total(lines, _WAITING), _total(lines, _FAILED))


def _total(lines: list[str], name: str) -> int:
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)))


def _free_ports(count: int) -> list[int]:
    """Ports on which no socket listens."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
