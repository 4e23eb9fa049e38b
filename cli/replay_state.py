"""How far a replay has come: marks of its own, so that it goes on where it was interrupted.

    DIRECTORY/NAME/replay.json   what is replayed, as it was meant at first; it is there until the command has
                                 said that all is sent, so that a kill before that sends nothing again
    DIRECTORY/NAME/delivery/     the marks, as a spool has them (spool.marks)
    DIRECTORY/NAME/lock          flock: who is at it

NAME tells the order (cli.replay_order). They do not lie in the spool, which may be another's, or read-only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cli.errors import BadArgument
from spool.catalogue import Catalogue
from spool.crash_point import reach
from spool.disk import make_directory, read_text, write_file
from spool.errors import SpoolBusy
from spool.layout import Layout
from spool.lock import Lock
from spool.marks import Marks
from spool.wanted import Wanted

_VERSION = 1
MOST_BYTES = 16 << 20
"""Of replay.json: an order of some hundred thousand topics and keys."""


def default_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where replays are kept in mind, unless somebody names another place."""
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "bruce-replay"


class ReplayMarks(Marks):
    """Marks of a replay: what the spool itself has delivered says nothing here."""

    def __init__(self, directory: Path, catalogue: Catalogue, start: int, *, readonly: bool = False) -> None:
        """`start`: below it nothing is asked for. Raises LMDB_REFUSES."""
        super().__init__(directory, catalogue, readonly=readonly)
        self._start = start

    def _floor(self, txn: Any) -> int:
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
        raise BadArgument(f"{path} is damaged, or of another release: remove {directory} to begin anew")
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
    """The state of one replay, ours as long as this lives."""

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
        """Forget it: everything is sent, and somebody knows."""
        (self.directory / "replay.json").unlink(missing_ok=True)
        reach("replay.forgotten")
        shutil.rmtree(self.directory, ignore_errors=True)

    def close(self) -> None:
        """Let go; the directory goes too when nothing was begun."""
        if self.begun is None:
            shutil.rmtree(self.directory, ignore_errors=True)
        with suppress(OSError):
            self._lock.release()
