"""The order of a replay, and how far it has come: with marks of its own, it goes on after an interruption.

An `Order` is the selection in the words of the command. `State` keeps the messages that it meant at first:

    DIRECTORY/NAME/replay.json   the selection, with fixed ends; it stays until the command has said that all
                                 is sent, so that a kill before that sends nothing again
    DIRECTORY/NAME/delivery/     the marks, as a spool has them (spool.marks.marks)
    DIRECTORY/NAME/lock          flock: the process that sends

NAME is a digest of the order. DIRECTORY is not in the spool, which may be another user's, or read-only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cli.inspect.records import parse_span
from cli.terminal.errors import BadArgument
from spool.errors import SpoolBusy
from spool.format.topic_table import legal
from spool.index.segment_list import SegmentList
from spool.layout import Layout
from spool.marks.marks import Marks
from spool.native.digest import digest
from spool.read.selection import Wanted
from spool.storage.disk import make_directory, read_text, write_file
from spool.storage.failpoint import reach
from spool.storage.lock import Lock

_VERSION = 1
MOST_BYTES = 16 << 20
"""Of replay.json: an order of some hundred thousand topics and keys."""
_PARTITION_KEYS = range(-(1 << 31), 1 << 31)
_UIDS = range(1 << 32)


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """One selection, in the words of the command."""

    since: str | None = None
    until: str | None = None
    topics: Sequence[str] = ()
    keys: Sequence[str] = ()
    partition_keys: Sequence[int] = ()
    uids: Sequence[int] = ()
    to_topic: str | None = None

    def check_says_something(self) -> None:
        """Raise BadArgument if it would be everything without saying so."""
        if not any((self.since, self.until, self.topics, self.keys, self.partition_keys, self.uids)):
            raise BadArgument(
                "say what to send again, with --from, --to, --topic, ...; --from 0 is everything"
            )

    def wanted(self) -> Wanted:
        """The messages that are meant, "-2h" being reckoned from now. Raises BadArgument."""
        _check("--partition-key", self.partition_keys, _PARTITION_KEYS)
        _check("--uid", self.uids, _UIDS)
        if self.to_topic is not None and not legal(self.to_topic.encode(errors="surrogateescape")):
            raise BadArgument(f"--to-topic {self.to_topic!r}: no topic of Kafka can be called that")
        span = parse_span(self.since, self.until, self.topics, now_ns=time.time_ns())
        return Wanted(
            span.first,
            span.end,
            span.from_ns,
            span.to_ns,
            span.topics,
            frozenset(key.encode(errors="surrogateescape") for key in self.keys),
            frozenset(self.partition_keys),
            frozenset(self.uids),
        )

    def name(self, spool: bytes, servers: str) -> str:
        """Tells this order, on this spool and for this cluster, from all others: 16 hexadecimal digits."""
        lists = {"topics", "keys", "partition_keys", "uids"}
        said = {
            name: sorted(value) if name in lists else value
            for name, value in dataclasses.asdict(self).items()
        }
        return f"{digest(json.dumps([spool.hex(), servers, said]).encode()):016x}"


def _check(option: str, given: Sequence[int], allowed: range) -> None:
    for number in given:
        if number not in allowed:
            raise BadArgument(f"{option} {number}: expected {allowed[0]} to {allowed[-1]}")


def default_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """The default directory for the state of replays."""
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "bruce-replay"


class ReplayMarks(Marks):
    """Marks of a replay: they ignore the floor of the spool's own delivery."""

    def __init__(
        self, directory: Path, segment_list: SegmentList, start: int, *, readonly: bool = False
    ) -> None:
        """`start`: below it nothing is asked for. Raises what Marks does."""
        super().__init__(directory, segment_list, readonly=readonly)
        self._start = start

    def _low_watermark(self, txn: Any) -> int:
        return max(self._start, self._sequence(b"floor", self._row(txn)) or 0)

    def _row(self, txn: Any) -> bytes | None:
        row: bytes | None = txn.get(b"floor", db=self._db[b"floor"])
        return row

    def stopped_at(self) -> int:
        """The floor as it was written, be its segment still kept or not; 0 before anything was."""
        with self._env.begin() as txn:
            return int.from_bytes((self._row(txn) or b"")[:8], "little")


@dataclasses.dataclass(frozen=True, slots=True)
class Begun:
    """A replay that has begun."""

    name: str
    """32 hexadecimal digits, chosen when it began; it is in the name of its transactions."""
    since_ms: int
    """When it began, ms since the epoch; the header bruce-replay of every record."""
    messages: int
    """How many there were then."""
    wanted: Wanted
    """With an end, and times that do not move."""
    gone: int = 0
    """How many of them were removed before they were sent; `wanted` begins behind those."""


def read_begun(directory: Path) -> Begun | None:
    """The replay that was begun and not finished; None when there is none. Raises BadArgument."""
    path = directory / "replay.json"
    try:
        found = json.loads(read_text(path, MOST_BYTES))
    except FileNotFoundError:
        return None
    except ValueError:
        found = {}
    if not isinstance(found, dict) or found.get("version") != _VERSION:
        raise BadArgument(f"{path} is damaged, or of another release: remove {directory} to begin again")
    wanted = _decode(found["wanted"])
    return Begun(found["name"], found["since_ms"], found["messages"], wanted, found.get("gone", 0))


def _encode(wanted: Wanted) -> dict[str, object]:
    shown = dataclasses.asdict(wanted)
    shown["topics"] = sorted(topic.hex() for topic in wanted.topics)
    shown["keys"] = sorted(key.hex() for key in wanted.keys)
    return {name: sorted(v) if isinstance(v, frozenset) else v for name, v in shown.items()}


def _decode(shown: dict[str, Any]) -> Wanted:
    sets = {name: frozenset(shown[name]) for name in ("partition_keys", "uids")}
    texts = {name: frozenset(map(bytes.fromhex, shown[name])) for name in ("topics", "keys")}
    return Wanted(**{**shown, **sets, **texts})


class State:
    """The state of one replay, which this process owns until `close`."""

    def __init__(self, directory: Path) -> None:
        """Raises SpoolBusy when another process is at this replay, BadArgument, OSError."""
        self.directory = directory
        make_directory(directory)
        try:
            self._lock = Lock(directory / "lock", "at this replay", patience_s=0)
        except SpoolBusy as error:
            raise SpoolBusy(f"another brucectl sends just these messages: {error}") from None
        try:
            self.begun = read_begun(directory)
        except BadArgument:
            self._lock.release()
            raise

    def begin(self, wanted: Wanted, messages: int) -> Begun:
        """Keep in mind what is to be sent from here on. Raises OSError."""
        shutil.rmtree(self.marks, ignore_errors=True)
        return self._keep(Begun(secrets.token_hex(16), time.time_ns() // 1_000_000, messages, wanted))

    def pass_over(self, begun: Begun, first: int, gone: int) -> Begun:
        """Go on from the sequence `first`: below it `gone` messages were removed. Raises OSError."""
        wanted = dataclasses.replace(begun.wanted, first=first)
        return self._keep(dataclasses.replace(begun, wanted=wanted, gone=begun.gone + gone))

    def _keep(self, begun: Begun) -> Begun:
        shown = {"version": _VERSION, **dataclasses.asdict(begun), "wanted": _encode(begun.wanted)}
        write_file(self.directory / "replay.json", json.dumps(shown).encode())
        self.begun = begun
        return begun

    @property
    def marks(self) -> Path:
        """The directory of its marks."""
        return Layout(self.directory).delivery

    def finish(self) -> None:
        """Forget it: everything is sent, and the user knows."""
        (self.directory / "replay.json").unlink(missing_ok=True)
        reach("replay.forgotten")
        shutil.rmtree(self.directory, ignore_errors=True)

    def close(self) -> None:
        """Let go; the directory goes too when nothing was begun."""
        if self.begun is None:
            shutil.rmtree(self.directory, ignore_errors=True)
        with suppress(OSError):
            self._lock.release()
