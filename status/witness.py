"""The document of the witness, as status, page, metrics and doctor show it.

`brucectl witness run` replaces DIRECTORY/witness.json every few seconds:

    {"version": 1, "written_s": seconds since the epoch,
     "tiers": [{"tier": name, "lag", "records", "skipped", "error": sentence or "",
                "spools": [{"spool": 32 hex digits, "host": text, "judged", "missing", "late",
                            "duplicated", "altered_blocks", "uncompared_blocks"}]}]}

A tier is a cluster, or a lake, that the witness reads: `lag` counts its offsets that are not read yet,
`records` those of bruce that are, `skipped` the offsets that it deleted before the witness had read them;
`error` says why it cannot be read now. The messages of a spool that must be in the tier by now are `judged`:
`missing` are not there. Others were delivered, and are not there yet: `late`. `duplicated` are there more
than once. A block is 4,096 sequences: of the `altered_blocks` the content in the tier is another than in the
spool, of the `uncompared_blocks` it cannot be compared.

Another process writes it, and perhaps another release: a document that is too large, malformed or of an
unknown version is a sentence. Texts are cut, and made harmless to a terminal and to a scraper.

The document of /api/v1/witness has all spools; `tiers` in that of /api/v1/status has their sums:

    {"version": 1, "taken": TIME, "written": null or TIME, "problem": null or a sentence,
     "tiers": [{"tier", "lag", "records", "skipped", "error": null or a sentence, "verdict",
                "spools": [{"spool", "host", "judged", "missing", "late", "duplicated",
                            "altered_blocks", "uncompared_blocks", "verdict"}]}]}

`verdict` is in words: "complete" when none is missing, late or altered. `problem` says that
there is no document, or none that can be read, or that the witness has stopped writing it.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from spool.words import CONTROLS, clipped, counted, utc

VERSION = 1
FILE = "witness.json"
STALE_S = 300.0
"""A document that is older is of a witness that has stopped."""
MOST_BYTES = 8 << 20
_MOST_TIERS = 100
_MOST_COUNT = 1 << 53
"""From here on a number of JSON is not exact for every reader."""
_MOST_NAME, _MOST_SENTENCE = 100, 300
"""Characters that are shown."""
_MOST_S = 253_402_300_799.0
"""The last second of the year 9999."""
_AHEAD_S = 60.0
_SPOOL = re.compile(r"[0-9a-f]{32}")
_COUNTS = ("judged", "missing", "late", "duplicated", "altered_blocks", "uncompared_blocks")
_UNREADABLE = "the witness's document cannot be read"


@dataclass(frozen=True, slots=True)
class WitnessOptions:
    """The witness that this host shows. The `[witness]` table of bruce.toml."""

    directory: Path | None = None
    """The directory of `brucectl witness run`, whose verdict the status page, /metrics, `brucectl status` and
    `brucectl doctor` show; without it they show none. The daemon's user must be able to read it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Numbers of messages, and of blocks of 4,096 sequences."""

    judged: int = 0
    """Messages that must be there by now."""
    missing: int = 0
    """Those of them that are not."""
    late: int = 0
    """Messages that were delivered, and are not there yet."""
    duplicated: int = 0
    altered_blocks: int = 0
    uncompared_blocks: int = 0

    @property
    def words(self) -> str:
        """In words: "complete" when nothing is missing, late or altered."""
        found = [f"{count:,} {what}" for what in ("missing", "late") if (count := getattr(self, what))]
        if self.altered_blocks:
            found.append(f"{counted(self.altered_blocks, 'block')} altered")
        return ", ".join(found) or ("complete" if self.judged else "nothing is judged yet")

    @property
    def wrong(self) -> int:
        """Messages and blocks that are not as they were sent; 0 while they may just be late."""
        return self.missing + self.altered_blocks

    def as_json(self) -> dict[str, Any]:
        """The documented shape."""
        return {**asdict(self), "verdict": self.words}


@dataclass(frozen=True, slots=True)
class SpoolView:
    """A spool in one tier."""

    spool: str
    """Its uuid, as 32 hex digits."""
    host: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class TierView:
    """A cluster, or a lake."""

    tier: str
    lag: int
    """Offsets that are not read yet."""
    records: int
    """Records that are read, and name a message."""
    skipped: int
    """Offsets that were deleted before they were read."""
    error: str
    """Why it cannot be read now; empty while it can."""
    spools: tuple[SpoolView, ...]
    verdict: Verdict
    """The sums of all spools."""

    def as_json(self) -> dict[str, Any]:
        """The documented shape, without counts."""
        return {
            "tier": self.tier,
            "lag": self.lag,
            "records": self.records,
            "skipped": self.skipped,
            "error": self.error or None,
        }


@dataclass(frozen=True, slots=True)
class WitnessView:
    """The verdict at one moment."""

    written_s: float = 0.0
    """When it was written, in seconds since the epoch; 0: there is none that can be read."""
    tiers: tuple[TierView, ...] = ()
    problem: str = ""
    """The sentence about the document; empty while it is in order."""
    errno: int = 0
    """Of the operation on the file that failed; 0: none did."""

    @property
    def written(self) -> str | None:
        """When it was written, as 2026-11-21T17:00:00Z; None without a document."""
        return utc(int(self.written_s) * 10**9) if self.written_s else None

    @property
    def rows(self) -> list[tuple[TierView, SpoolView]]:
        """Each spool in each tier, those first of which most is missing, altered, or late."""
        found = [(tier, spool) for tier in self.tiers for spool in tier.spools]
        return sorted(found, key=lambda row: (-row[1].verdict.wrong, -row[1].verdict.late))

    @property
    def loss(self) -> str:
        """The messages that are missing, and the blocks that are altered, in one sentence; empty without."""
        if not any(tier.verdict.wrong for tier in self.tiers):
            return ""
        wrong = [row for row in self.rows if row[1].verdict.wrong]
        tier, spool = wrong[0]
        host = f" of {spool.host}" if spool.host else ""
        others = f"; {counted(len(wrong) - 1, 'more verdict')} like this" if len(wrong) > 1 else ""
        return (
            f"the witness finds in tier {tier.tier}, of spool {spool.spool}{host}: "
            f"{spool.verdict.words}{others}"
        )

    @property
    def unread(self) -> list[str]:
        """For each tier that cannot be read now, a sentence."""
        return [f"the witness cannot read tier {one.tier}: {one.error}" for one in self.tiers if one.error]

    @property
    def summary(self) -> dict[str, Any]:
        """Its part of the document of `brucectl status --json`."""
        return self._head() | {
            "tiers": [
                {**one.as_json(), "spools": len(one.spools), **one.verdict.as_json()} for one in self.tiers
            ]
        }

    def as_json(self, taken: str) -> dict[str, Any]:
        """The documented shape, with all spools."""
        tiers = [
            {
                **one.as_json(),
                "verdict": one.verdict.words,
                "spools": [
                    {"spool": each.spool, "host": each.host, **each.verdict.as_json()} for each in one.spools
                ],
            }
            for one in self.tiers
        ]
        return {"version": VERSION, "taken": taken, **self._head(), "tiers": tiers}

    def _head(self) -> dict[str, Any]:
        return {"written": self.written, "problem": self.problem or None}


def summed(verdicts: Iterable[Verdict]) -> Verdict:
    """The sums of each count."""
    rows = [[getattr(one, name) for name in _COUNTS] for one in verdicts]
    return Verdict(*map(sum, zip(*rows, strict=True)))


class Witness:
    """The document in a directory, read again only when the file is another."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since the epoch."""
        self._path, self._clock = directory / FILE, clock
        self._stamp: tuple[int, ...] = ()
        self._found = WitnessView()

    def look(self) -> WitnessView:
        """The verdict now. Raises nothing: a problem with the document is in it."""
        try:
            # Without O_NONBLOCK a pipe of this name would not open before it has a writer.
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                self._take(fd)
            finally:
                os.close(fd)
        except FileNotFoundError as error:
            self._forget(f"the witness has not written anything to {self._path.parent} yet", error.errno)
        except OSError as error:
            self._forget(f"{_UNREADABLE}: {error.strerror}", error.errno)
        return self._aged()

    def _take(self, fd: int) -> None:
        about = os.fstat(fd)
        stamp = (about.st_ino, about.st_mtime_ns, about.st_size)
        if stamp == self._stamp:
            return
        try:
            self._found = WitnessView(*parse(_read(fd, about)))
        except ValueError as error:
            self._found = WitnessView(problem=f"{_UNREADABLE}: {error}")
        self._stamp = stamp

    def _forget(self, problem: str, errno: int | None) -> None:
        self._stamp, self._found = (), WitnessView(problem=problem, errno=errno or 0)

    def _aged(self) -> WitnessView:
        found, age_s = self._found, self._clock() - self._found.written_s
        if found.problem or -_AHEAD_S <= age_s <= STALE_S:
            return found
        if age_s < 0:
            return replace(found, problem="the witness's document is from the future: a clock was set back")
        return replace(found, problem=f"the witness has stopped: it wrote last at {found.written}")


def _read(fd: int, about: os.stat_result) -> bytes:
    """All of an open file. Raises ValueError for one that is no document, OSError."""
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is no file")
    with open(fd, "rb", closefd=False) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
    return data


def parse(data: bytes) -> tuple[float, tuple[TierView, ...]]:
    """(written_s, tiers) of a document. Raises ValueError, whose text says what is wrong with it."""
    document = _decode(data)
    version = _member(document, "version", object)
    if type(version) is not int or version != VERSION:
        raise ValueError(f"its version is {_text(version, _MOST_NAME)}, and this release reads {VERSION}")
    written = _member(document, "written_s", (int, float))
    if not 0 < written < _MOST_S:
        raise ValueError("its written_s is no time")
    tiers = _member(document, "tiers", list)
    if len(tiers) > _MOST_TIERS:
        raise ValueError(f"it has {len(tiers):,} tiers")
    found = tuple(map(_tier, tiers))
    _each_once("tier", (one.tier for one in found))
    return float(written), found


def _decode(data: bytes) -> object:
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {clipped(str(error), _MOST_NAME)}") from None


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _tier(found: object) -> TierView:
    name = _name(found, "tier")
    if not name:
        raise ValueError("a tier has no name")
    spools = tuple(map(_spool, _member(found, "spools", list)))
    _each_once(f"of tier {name}, spool", (one.spool for one in spools))
    return TierView(
        name,
        _count(found, "lag"),
        _count(found, "records"),
        _count(found, "skipped"),
        _text(_member(found, "error", str), _MOST_SENTENCE),
        spools,
        summed(one.verdict for one in spools),
    )


def _spool(found: object) -> SpoolView:
    uuid = _member(found, "spool", str)
    if not _SPOOL.fullmatch(uuid):
        raise ValueError("a spool is not named by 32 hex digits")
    return SpoolView(uuid, _name(found, "host"), Verdict(*(_count(found, key) for key in _COUNTS)))


def _member(found: object, key: str, kind: type | tuple[type, ...]) -> Any:
    """A member of an object, if it is of this kind. Raises ValueError."""
    if not isinstance(found, Mapping):
        raise ValueError("a list or a value is in the place of an object")  # noqa: TRY004  (one error for all)
    if key not in found:
        raise ValueError(f"it has no {key}")
    value = found[key]
    # bool is an int to Python, and not to JSON.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not object):
        raise ValueError(f"its {key} is of the wrong type")
    return value


def _count(found: object, key: str) -> int:
    value = _member(found, key, int)
    if not 0 <= value <= _MOST_COUNT:
        raise ValueError(f"its {key} is no count")
    return int(value)


def _name(found: object, key: str) -> str:
    return _text(_member(found, key, str), _MOST_NAME)


def _text(value: object, most: int) -> str:
    """On one line, without what commands a terminal, and in UTF-8: JSON can name half a character."""
    text = clipped(str(value), most).translate(CONTROLS)
    return text.encode("utf-8", "replace").decode("utf-8")


def _each_once(what: str, names: Iterable[str]) -> None:
    """Two rows of one name would be one series, and a scraper takes no such answer. Raises ValueError."""
    seen = set[str]()
    for name in names:
        if name in seen:
            raise ValueError(f"{what} {name} is in it twice")
        seen.add(name)
