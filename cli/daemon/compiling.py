"""The compiled loops of a host: made ahead by `bruce compile`, or beside a daemon that works already.

The daemon loads all of them before it forks its workers.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cli.config.settings import TABLES, write_tables
from cli.status.snapshot import take_snapshot
from ingest import access
from ingest.buffers import connection_buffer, connection_buffers, staging
from ingest.kafka import record_batch
from ingest.role import die_with
from ingest.streams import newcomers
from ingest.worker import burst, guard
from spool.format import topic_table
from spool.format.wire import encode
from spool.log import group_commit, intake_totals
from spool.native.kernel import INTERPRETED, compile_at_once, interpret_meanwhile, is_kept, load_kept
from spool.read import backlog
from spool.shared import ledger

_MODULES = (
    burst,
    access,
    staging,
    guard,
    connection_buffer,
    connection_buffers,
    newcomers,
    ledger,
    intake_totals,
    group_commit,
    backlog,
)
PARTS = len(_MODULES)

_COMPILER = "libllvmlite"
_MAPPING = r"^([0-9a-f]+)-([0-9a-f]+) ([^\n]*)$.*?^Anonymous: +(\d+) kB$.*?^Swap: +(\d+) kB$"
"""A mapping in smaps (proc_pid_smaps(5))."""
_MADV_DONTNEED = 4
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
    # Of the first and of the last module that `compile_kernels` compiles.
    first, last = is_kept(burst.receive), is_kept(topic_table.enter)
    return None if first is None else bool(first and last)


def compile_kernels(done: Callable[[int], None] = lambda _parts: None) -> None:
    """Compile, or load from the cache, what every worker runs; before forking, so that they share it.

    `done` is called with 1 to PARTS.
    """
    for number, module in enumerate(_MODULES, 1):
        module.compile_kernels()
        done(number)
    if not INTERPRETED:
        _let_go_of_compiler()


def load_loops() -> None:
    """Load the loops of a worker, which were compiled ahead, before it begins: each takes some 50 ms."""
    load_kept()
    if not INTERPRETED:
        _let_go_of_compiler()


def _let_go_of_compiler() -> None:
    """Unmap the pages of LLVM, 65 MB, which is not needed until another loop is loaded.

    Only mappings without a page that differs from the file: the kernel maps theirs again when they are used.
    """
    libc = ctypes.CDLL(None)
    found = re.finditer(_MAPPING, Path("/proc/self/smaps").read_text(), re.MULTILINE | re.DOTALL)
    for first, end, name, anonymous, swapped in (mapping.groups() for mapping in found):
        if _COMPILER in name and anonymous == swapped == "0":
            at, length = int(first, 16), int(end, 16) - int(first, 16)
            libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(length), _MADV_DONTNEED)


def compile_all() -> None:
    """Compile what this release runs on this host, or load it from the cache. Raises OSError.

    The loops of the intake are called one by one. Those that deliver are compiled by a daemon of their own,
    with a Kafka in memory, that delivers a few messages.
    """
    started, parts = time.monotonic(), PARTS + 1
    compile_kernels(lambda done: _say(done, parts, started))
    # Only the Kafka worker has these: they are loaded there.
    record_batch.compile_kernels()
    _deliver()
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
    """Return when it is true. Raises OSError when the daemon has ended, or takes too long."""
    until = time.monotonic() + _MOST_S
    while not condition():
        if daemon.poll() is not None or time.monotonic() > until:
            last = said.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise OSError(f"the daemon that compiles did not deliver: {last}")
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
        except OSError as error:
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
        compile_kernels()
        log.info("compiled; new workers run at full speed")
        return True

    def stop(self) -> None:
        """End it, if it runs, and what it has begun."""
        if self._pid:
            os.kill(self._pid, signal.SIGTERM)
            os.waitpid(self._pid, 0)
            self._pid = 0
