"""The host: what the kernel grants bruce, its clock, and the environment that bruce is installed in."""

from __future__ import annotations

import ctypes
import re
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from cli.doctor import Finding, Level
from cli.terminal.clashes import HOME, PACKAGES, find_clashes, find_owners
from ingest.buffers.staging import OVERFLOW_BYTES, overflow_at
from pipeline.spark_release import columns_installed, java_here, pyspark_here
from spool.format.segment_format import MAX_BURST
from spool.native import library
from spool.shared.runtime import memory
from spool.storage.disk import free_bytes
from spool.words import size_in_words

QUEUE_LENGTH = Path("/proc/sys/net/unix/max_dgram_qlen")
ENOUGH_QUEUED = 512
"""A burst of the intake."""
MEMORY_BYTES = overflow_at(MAX_BURST) + MAX_BURST * OVERFLOW_BYTES
"""The bytes of its tmpfs that staging reserves."""
LOCKED_BYTES = MEMORY_BYTES
"""Staging locks all of it in memory."""
UNSYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2): no service keeps the clock right."""
_CAP_IPC_LOCK = 1 << 14
_UNLIMITED = "unlimited"

_HIDES = {True: "hides", False: "is hidden by"}
_OURS = re.compile(rf"^({'|'.join(PACKAGES)})(?=/|\.py,)", re.MULTILINE)
_OWN = "give bruce an environment of its own"


def look(pid: int | None) -> Iterator[Finding]:
    """All checks of this host. `pid`: of the ingest worker, whose limits count; None for those from here."""
    yield check_queue(read_queue_length())
    yield check_locking(*read_locking(pid))
    directory = memory()
    free, _ = free_bytes(directory)
    # A daemon that runs has its share already.
    yield check_memory(directory, free + (MEMORY_BYTES if pid else 0))
    yield check_clock(clock_state())


def read_queue_length() -> int | None:
    """Datagrams that a socket made here can queue; None when the kernel does not tell."""
    try:
        return int(QUEUE_LENGTH.read_text())
    except (OSError, ValueError):
        return None


def check_queue(length: int | None) -> Finding:
    """Whether a burst of datagrams finds room in the socket while bruce is busy, or starts again."""
    name = "socket queue"
    if length is None:
        return Finding(name, Level.UNKNOWN, f"{QUEUE_LENGTH} cannot be read")
    if length < ENOUGH_QUEUED:
        return Finding(
            name,
            Level.ADVICE,
            f"net.unix.max_dgram_qlen is {length}: a sender waits once this many datagrams are in the socket",
            f"sysctl -w net.unix.max_dgram_qlen={ENOUGH_QUEUED}, the same in /etc/sysctl.d; restart bruce",
        )
    return Finding(name, Level.OK, f"net.unix.max_dgram_qlen is {length}")


def read_locking(pid: int | None) -> tuple[int | None, bool]:
    """(bytes that a process may lock, whether it has the right to lock more); None for any number.

    `pid`: None for this process.
    """
    try:
        process = Path("/proc", str(pid or "self"))
        limits, status = (process / "limits").read_text(), (process / "status").read_text()
    except OSError:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        return (None if soft == resource.RLIM_INFINITY else soft), False
    soft_text = re.search(r"^Max locked memory +(\S+)", limits, re.MULTILINE)
    rights = re.search(r"^CapEff:\s+([0-9a-f]+)", status, re.MULTILINE)
    told = soft_text[1] if soft_text else _UNLIMITED
    return (
        None if told == _UNLIMITED else int(told),
        bool(rights and int(rights[1], 16) & _CAP_IPC_LOCK),
    )


def check_locking(limit: int | None, privileged: bool) -> Finding:  # noqa: FBT001  (as read)
    """Whether staging stays in memory when the host swaps."""
    name = "locked memory"
    if privileged or limit is None or limit >= LOCKED_BYTES:
        return Finding(
            name, Level.OK, f"the {size_in_words(LOCKED_BYTES)} of staging can be locked in memory"
        )
    return Finding(
        name,
        Level.ADVICE,
        f"only {size_in_words(limit)} of the {size_in_words(LOCKED_BYTES)} of staging can be locked in "
        "memory: a host that swaps makes senders wait, and one without memory can lose large datagrams",
        "raise the limit, for systemd by LimitMEMLOCK=64M",
    )


def check_memory(directory: Path, free: int) -> Finding:
    """Whether the tmpfs has room for what staging reserves."""
    name = "staging"
    if free < MEMORY_BYTES:
        return Finding(
            name,
            Level.ADVICE,
            f"{directory} has {size_in_words(free)} free of {size_in_words(MEMORY_BYTES)} that staging "
            "reserves: bursts are smaller, and none are taken while the disk stalls",
            "make this tmpfs larger (for a container, --shm-size)",
        )
    return Finding(name, Level.OK, f"{directory} has room for staging")


def clock_state() -> int:
    """The state of the clock as adjtimex(2) returns it; -1 if this process may not ask."""
    unchanged = ctypes.create_string_buffer(512)  # struct timex: with modes = 0 nothing is set
    return int(ctypes.CDLL(None).adjtimex(unchanged))


def check_clock(state: int) -> Finding:
    """Whether a service keeps the clock right: times of reception, and of Kafka's retention, go by it."""
    name = "clock"
    if state < 0:
        return Finding(name, Level.UNKNOWN, "the kernel does not say whether the clock is kept right")
    if state == UNSYNCHRONISED:
        return Finding(
            name,
            Level.ADVICE,
            "no service keeps the clock right: times of reception, --from and --to are as wrong as it is",
            "start chronyd, ntpd or systemd-timesyncd",
        )
    return Finding(name, Level.OK, "the clock is kept right")


def look_at_environment() -> Iterator[Finding]:
    """All checks of this environment."""
    yield check_owners(owners_here())
    yield check_path(sys.path)
    yield check_loops(library.places(), made=library.find() is not None)
    if not find_spec("pyspark"):
        yield Finding(
            "pyspark",
            Level.OK,
            "no pyspark: brucectl spark needs bruce-spool[spark], all else does not",
        )
        return
    spark: dict[str, Callable[[], tuple[bool, str]]] = {
        "pyspark": pyspark_here,
        "java": java_here,
        "arrow": columns_installed,
    }
    for name, ask in spark.items():
        ok, sentence = ask()
        # The sentence says what is missing and what to do, as `brucectl spark` says it.
        yield Finding(name, Level.OK if ok else Level.PROBLEM, sentence)


def owners_here() -> dict[str, list[str]]:
    """By package with a name of ours, the installed distributions that have files in it."""
    found: dict[str, list[str]] = {}
    for one in distributions():
        # As text: to parse each path of all distributions takes half a second.
        for package in set(_OURS.findall(one.read_text("RECORD") or "")):
            found.setdefault(package, []).append(one.name)
    return found


def check_owners(distributions: Mapping[str, Sequence[str]]) -> Finding:
    """Whether other distributions have packages with our names: the last one installed overwrites."""
    if found := find_owners(distributions):
        listed = "; ".join(f"{package} is of {', '.join(others)}, too" for package, others in found.items())
        return Finding("distributions", Level.PROBLEM, f"packages clash: {listed}", _OWN)
    return Finding("distributions", Level.OK, "no other distribution has a package with a name of bruce's")


def check_loops(places: Sequence[Path], *, made: bool) -> Finding:
    """Whether compiled loops are kept. `places`: where they may be; `made`: this release's are there."""
    name = "compiled loops"
    if made:
        return Finding(name, Level.OK, "the compiled loops of this release are on disk")
    if any(map(library.can_be_written, places)):
        sentence = "`bruce compile`, or the first start, makes the compiled loops in half a minute"
        return Finding(name, Level.OK, sentence)
    return Finding(
        name,
        Level.ADVICE,
        f"each start compiles, for 30 s: {' and '.join(map(str, places))} cannot be written",
        "run `bruce compile` as one who may write there, or set NUMBA_CACHE_DIR to a folder of bruce's user",
    )


def check_path(path: Sequence[str], home: str = HOME) -> Finding:
    """Whether the path (as sys.path) has modules with our names elsewhere: the first hides the others."""
    found = [f"{c.package} in {c.place} {_HIDES[c.first]} bruce's" for c in find_clashes(path, home)]
    if found:
        return Finding("path", Level.PROBLEM, f"packages clash: {'; '.join(found)}", _OWN)
    return Finding(
        "path",
        Level.OK,
        f"bruce's packages are those in {home}, and nothing else on the path has their names",
    )
