"""Programs that take datagrams and hand them to Kafka, run beside bruce: syslog daemons, and a floor in C.

Each takes the same value from the same sender (`baselines/pace.c`), in the datagram that it understands, and
sends it to the same topic with acks=all. rsyslog and syslog-ng have a disk-assisted queue: messages wait in
memory, and on disk when that is full. The floor has no queue but librdkafka's. The packages of Debian exclude
each other: `dpkg -x` unpacks one into a folder, whose usr/sbin is then put into PATH.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.status.snapshot import ROLES
from spool.format.wire import encode
from spool.shared.state import WORKER_WORDS, Field
from tools.benches.arrivals import DIGITS
from tools.benches.bench import TOPIC, Bench
from tools.benches.machine import Skipped, compile_c, librdkafka_path
from tools.bruce_process import Bruce
from tools.waiting import wait_until

VALUE_BYTES = 100
START_S = 60.0
_STAMP = b"0" * DIGITS
_VALUE = _STAMP + b" an ordinary line of a log, " + b"x" * (VALUE_BYTES - DIGITS - 28)
_TIMESTAMP_AT = 12 + len(TOPIC)


@dataclass(frozen=True, slots=True)
class Running:
    """A program that takes datagrams."""

    pid: int
    socket: Path
    datagram: bytes
    roles: Callable[[], Mapping[int, str]] = dict
    """By pid, the role of each process, as far as it says so."""
    timestamp_at: int = -1
    """Offset of the datagram's own timestamp, int64 ms; negative: it has none."""

    @property
    def stamp_at(self) -> int:
        """Offset of the value's time."""
        return self.datagram.index(_STAMP)


Start = Callable[[Bench, str], contextlib.AbstractContextManager[Running]]


@contextmanager
def bruce(bench: Bench, bootstrap: str) -> Iterator[Running]:
    """With its defaults, and its status page."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    yield from _bruce(bench, bootstrap, port)


@contextmanager
def bruce_without_page(bench: Bench, bootstrap: str) -> Iterator[Running]:
    """With its defaults, and no status page."""
    yield from _bruce(bench, bootstrap, 0)


def _bruce(bench: Bench, bootstrap: str, port: int) -> Iterator[Running]:
    with bench.bruce(bootstrap, settings={"spool": {}, "dispatch": {}, "status": {"port": port}}) as one:
        one.start()
        datagram = encode(TOPIC.encode(), _VALUE)
        yield Running(one.pid, one.socket, datagram, lambda: _roles(one), _TIMESTAMP_AT)
        one.stop()


def _roles(one: Bruce) -> Mapping[int, str]:
    words = one.shared()
    if words is None:
        return {}
    return {int(words[Field.WORKERS + WORKER_WORDS * row]): role for row, role in enumerate(ROLES)}


@contextmanager
def floor(bench: Bench, bootstrap: str) -> Iterator[Running]:
    """recvmmsg and produceva, no disk."""
    program = compile_c("forward_librdkafka", bench.programs)
    with _place(bench, "floor") as place:
        path = place / "floor.sock"
        command = [program, librdkafka_path(), bootstrap, TOPIC, path]
        with _running(command, place, path) as pid:
            yield Running(pid, path, _VALUE)


_RSYSLOG = """\
global(workDirectory="{place}")
module(load="imuxsock" SysSock.Use="off")
module(load="omkafka")
input(type="imuxsock" Socket="{socket}" RateLimit.Interval="0")
template(name="value" type="list") {{ property(name="msg" position.from="2") }}
action(type="omkafka" topic="{topic}" broker=[{brokers}] template="value" confParam=["acks=all"]
       partitions.auto="on" action.resumeRetryCount="-1"
       queue.type="LinkedList" queue.filename="kafka" queue.maxDiskSpace="1g" queue.saveOnShutdown="on")
"""


@contextmanager
def rsyslog(bench: Bench, bootstrap: str) -> Iterator[Running]:
    """rsyslogd with omkafka and a disk-assisted queue."""
    program = find_program("rsyslogd", "rsyslog rsyslog-kafka")
    with _place(bench, "rsyslog") as place:
        path, config = place / "log.sock", place / "rsyslog.conf"
        brokers = ", ".join(f'"{broker}"' for broker in bootstrap.split(","))
        config.write_text(_RSYSLOG.format(place=place, socket=path, topic=TOPIC, brokers=brokers))
        check_configuration([program, "-N1", "-f", config], "rsyslog")
        command = [program, "-n", "-f", config, "-i", place / "pid"]
        with _running(command, place, path) as pid:
            yield Running(pid, path, _syslog_line())


_SYSLOG_NG = """\
@version: {version}
options {{ stats-freq(0); time-reopen(1); }};
source sent {{ unix-dgram("{socket}"); }};
destination kafka {{
    kafka-c(bootstrap-servers("{bootstrap}") topic("{topic}") message("$MSG") config(acks("all"))
            disk-buffer(disk-buf-size(1073741824) reliable(no) dir("{place}")));
}};
log {{ source(sent); destination(kafka); }};
"""


@contextmanager
def syslog_ng(bench: Bench, bootstrap: str) -> Iterator[Running]:
    """syslog-ng with kafka-c and a disk buffer."""
    program = find_program("syslog-ng", "syslog-ng-core syslog-ng-mod-rdkafka")
    root = program.parents[2]
    modules = max(root.glob("usr/lib/syslog-ng/[0-9]*"))
    environ = {**os.environ, "LD_LIBRARY_PATH": str(modules.parent)}
    with _place(bench, "syslog-ng") as place:
        path, config = place / "log.sock", place / "syslog-ng.conf"
        values = {"version": modules.name, "socket": path, "bootstrap": bootstrap, "topic": TOPIC}
        config.write_text(_SYSLOG_NG.format(place=place, **values))
        files = [f"--{kind}={place / kind}" for kind in ("persist-file", "pidfile", "control")]
        command = [program, "-F", "--no-caps", f"--module-path={modules}", "-f", config, *files]
        check_configuration([*command, "-s"], "syslog-ng", environ)
        with _running(command, place, path, environ) as pid:
            yield Running(pid, path, _syslog_line())


PROGRAMS: Mapping[str, Start] = {
    "bruce": bruce,
    "bruce, no page": bruce_without_page,
    "rsyslog": rsyslog,
    "syslog-ng": syslog_ng,
    "C program": floor,
}


def _syslog_line() -> bytes:
    return b"<13>Nov  1 12:00:00 day: " + _VALUE


def find_program(name: str, packages: str) -> Path:
    """Its path. Raises Skipped when it is not installed, with the packages that have it."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if not found:
        raise Skipped(f"{name} is not installed (Debian: {packages})")
    return Path(found).resolve()


def check_configuration(command: list[object], name: str, environ: Mapping[str, str] | None = None) -> None:
    """Raises Skipped when the program refuses its configuration, as without its module for Kafka."""
    ran = subprocess.run([*map(str, command)], env=environ, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Skipped(f"{name} refuses its configuration: {(ran.stderr or ran.stdout).strip()[-300:]}")


@contextmanager
def _place(bench: Bench, name: str) -> Iterator[Path]:
    """An empty directory, gone afterwards."""
    place = bench.directory / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _running(
    command: list[object], place: Path, path: Path, environ: Mapping[str, str] | None = None
) -> Iterator[int]:
    """The pid of a program that has bound its socket; it is ended with the block."""
    log = (place / "log").open("wb")
    with log, subprocess.Popen([*map(str, command)], env=environ, stdout=log, stderr=log) as process:
        try:
            wait_until(
                lambda: path.exists() or process.poll() is not None,
                START_S,
                f"{command[0]} to bind its socket",
            )
            if process.poll() is not None:
                raise Skipped(f"{command[0]} ended: {(place / 'log').read_text()[-300:]}")
            yield process.pid
        finally:
            process.kill()
