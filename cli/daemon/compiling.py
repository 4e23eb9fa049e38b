"""The compiled loops of a host: made ahead by `bruce compile`, or beside a daemon that works already.

The daemon loads all of them before it forks its workers.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from cli.config.settings import TABLES, write_tables
from cli.daemon.footprint import let_go
from cli.status.snapshot import take_snapshot
from cli.terminal.errors import NotCompiled
from ingest.buffers import connection_buffers, staging
from ingest.kafka import record_batch
from ingest.role import die_with
from ingest.streams import newcomers
from ingest.worker import burst, guard
from router import limits
from router.outcomes import trace
from spool.format import topic_table
from spool.format.wire import encode
from spool.fsck import frame_recovery
from spool.log import group_commit, intake_totals
from spool.native import kernel, library
from spool.native.kernel import INTERPRETED, compile_at_once, interpret_meanwhile, load_all
from spool.read import backlog, patterns

_MODULES = (
    burst,
    staging,
    guard,
    connection_buffers,
    newcomers,
    record_batch,
    intake_totals,
    group_commit,
    backlog,
    topic_table,
    limits,
    trace,
    patterns,
    frame_recovery,
)
PARTS = len(_MODULES)
_DELIVERY = ("cli.daemon.delivery_worker", "cli.daemon.kafka_input")
"""Modules that import the loops of all that is delivered."""

log = logging.getLogger("bruce")
_DELIVERED = b"delivery has started"
_NOT_ITS = ("NOTIFY_", "LISTEN_", *(f"BRUCE_{table.upper()}_" for table in (*TABLES, "kafka")))
"""The beginnings of variables that are another daemon's: its settings, its service manager."""
_MOST_S = 600.0
"""For the daemon that compiles what delivers; it takes a quarter of a minute on an idle processor."""
_MESSAGES = (encode(b"t", b"v"), encode(b"t", b"v", key=b"k"), encode(b"t", b"v", partition_key=1))
_DEAD_LETTER = encode(b"no topic has this name", b"v")
_MOST_BYTES = 1000
"""The least that librdkafka takes for the size of a message."""
_DISCARD = encode(b"d", bytes(2 * _MOST_BYTES))
"""Of the dead-letter topic itself, and too large: it goes to the discard file."""
_RUN = """
import sys
from pathlib import Path
from cli.config.config import load_config
from cli.daemon import logs
from cli.daemon.daemon import Daemon
from ingest.role import die_with
from ingest.streams import newcomers
die_with(int(sys.argv[2]))
logs.begin()
Daemon(load_config(Path(sys.argv[1])), beside=False).run()
"""


def is_compiled() -> bool | None:
    """Whether all are on disk, for this release and processor; None: no place on disk can be written."""
    if INTERPRETED or library.find():
        return True
    return False if any(map(library.can_be_written, library.places())) else None


def load_loops() -> None:
    """Load what every worker runs, or compile it; before forking, so that they share it."""
    if not load_all():
        _compile_parts(lambda _part: None)
    let_go()


def _compile_parts(done: Callable[[int], None]) -> None:
    """Compile what can be called without a daemon that delivers. `done` is called with 1 to PARTS."""
    for number, module in enumerate(_MODULES, 1):
        module.compile_kernels()
        done(number)
    for one in kernel.kernels:
        one.compile_plain()


def compile_all() -> None:
    """Compile what this release runs on this host, and write the library, unless it is there.

    Raises NotCompiled, OSError.

    The loops of the intake are called one by one. Those that deliver are compiled by a daemon of their own,
    with a Kafka in memory, that delivers a few messages.
    """
    if INTERPRETED:
        raise NotCompiled("NUMBA_DISABLE_JIT is set, with which nothing is compiled")
    started, parts = time.monotonic(), PARTS + 1
    if library.find():
        _say(parts, parts, started)
        return
    if is_compiled() is None:
        tried = " and ".join(map(str, library.places()))
        raise NotCompiled(
            f"there is no place for compiled loops, {tried} cannot be written: set NUMBA_CACHE_DIR"
        )
    _compile_parts(lambda done: _say(done, parts, started))
    _deliver()
    for module in _DELIVERY:
        import_module(module)
    from spool.native import linking  # noqa: PLC0415  (Numba)

    try:
        linking.write(one for one in kernel.kernels if one.ahead)
    except ValueError as error:
        raise NotCompiled(f"{error}: its cache cannot be written; set NUMBA_CACHE_DIR") from error
    _say(parts, parts, started)


def _say(done: int, parts: int, started: float) -> None:
    log.info("compiled %d of %d parts for this host, after %.0f s", done, parts, time.monotonic() - started)


def _deliver() -> None:
    # Only from here on: LLVM takes an exception in its callbacks for a failure.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="bruce-") as folder:
        place = Path(folder)
        config, inlet, said = place / "bruce.toml", place / "bruce.sock", place / "log"
        tables: dict[str, dict[str, object]] = {
            "ingest": {"datagram_socket": str(inlet)},
            "spool": {"directory": str(place / "spool"), "max_bytes": 4 << 20, "segment_bytes": 1 << 20},
            "dispatch": {
                "drain_seconds": 0,
                "dead_letter_topic": "d",
                "discard_file": str(place / "discards"),
            },
            "kafka": {"bootstrap.servers": "embedded", "message.max.bytes": _MOST_BYTES},
            "status": {"port": 0},
            "log": {"format": "text"},
        }
        config.write_text(write_tables(tables), encoding="utf-8")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_ITS)}
        with said.open("wb") as to:
            daemon = subprocess.Popen(
                [sys.executable, "-c", _RUN, str(config), str(os.getpid())],
                stderr=to,
                env=environ,
                cwd=Path(__file__).parents[2],
                start_new_session=True,  # what a terminal sends to all is not for it
            )
        try:
            _await(inlet.exists, daemon, said)
            _send(inlet, *_MESSAGES, _DEAD_LETTER, _DISCARD)
            _await(lambda: _DELIVERED in said.read_bytes(), daemon, said)
            # Messages of topics that are known take another way.
            _send(inlet, *_MESSAGES, _DEAD_LETTER)
            _await(lambda: _is_done(place / "spool", 2 * len(_MESSAGES)), daemon, said)
            # While nothing else is in flight, all of it is plain (BatchRouter._send_plainly).
            _send(inlet, *_MESSAGES)
            _await(lambda: _is_done(place / "spool", 3 * len(_MESSAGES)), daemon, said)
        finally:
            daemon.terminate()
            daemon.wait()


def _is_done(spool: Path, delivered: int) -> bool:
    found = take_snapshot(spool)
    return (found.delivered, found.dead_lettered, sum(found.discarded.values())) == (delivered, 2, 3)


def _send(inlet: Path, *messages: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for message in messages:
            sender.sendto(message, str(inlet))


def _await(condition: Callable[[], bool], daemon: subprocess.Popen[bytes], said: Path) -> None:
    """Return when it is true. Raises NotCompiled when the daemon has ended, or takes too long."""
    until = time.monotonic() + _MOST_S
    while not condition():
        if daemon.poll() is not None or time.monotonic() > until:
            last = said.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise NotCompiled(f"the daemon that compiles did not deliver: {last}")
        time.sleep(0.05)


class Compiler:
    """A process that compiles while the daemon's workers run the same loops as plain Python."""

    def __init__(self) -> None:
        """Fork it. It dies with this process."""
        interpret_meanwhile()
        log.info(
            "compiling for this host, once (`bruce compile` does it ahead); meanwhile messages are taken and "
            "delivered, more slowly"
        )
        parent = os.getpid()
        # A signal that comes before the child has its own way with it would be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        self._pid = os.fork()
        if self._pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return
        try:
            die_with(parent)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            compile_at_once()
            compile_all()
        except KeyboardInterrupt:
            os._exit(1)
        except (NotCompiled, OSError) as error:
            log.error("compiling failed: %s", error)
            os._exit(1)
        except BaseException:
            log.exception("compiling failed")
            os._exit(1)
        os._exit(0)

    def has_ended(self) -> bool:
        """Whether it has ended since the last call, and has compiled; from then on loops are compiled ones.

        If it has failed, loops stay plain Python: to compile here would halt the daemon, and fail, too.
        """
        if not self._pid or not os.waitpid(self._pid, os.WNOHANG)[0]:
            return False
        self._pid = 0
        if not is_compiled():
            log.error("nothing was compiled; workers go on as they are, and the next start tries again")
            return False
        compile_at_once()
        kernel.look_again()
        load_loops()
        log.info("compiled; new workers run at full speed")
        return True

    def stop(self) -> None:
        """End it, if it runs, and what it has begun."""
        if self._pid:
            os.kill(self._pid, signal.SIGTERM)
            os.waitpid(self._pid, 0)
            self._pid = 0
