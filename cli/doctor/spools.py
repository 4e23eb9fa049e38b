"""Spools: the configured one, and those of older configurations that no daemon looks after."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from cli.config.config import SYSTEM_FILE, Config, default_paths
from cli.config.settings import read_file
from cli.doctor import Finding, Level
from cli.doctor.disk import used_bytes
from cli.status.snapshot import take_snapshot
from cli.terminal.errors import CliError
from spool.errors import NoSpool, SpoolError
from spool.layout import Layout
from spool.read.overview import Overview
from spool.storage.lock import is_held
from spool.words import size_in_words, waiting
from status.report import Snapshot

AHEAD_NS = 60 * 10**9
"""A message that was received so much later than now was received by another clock."""


def look_at(directory: Path) -> tuple[Snapshot | None, list[Finding]]:
    """The configured spool, None when it is not there or cannot be read, and what is found about it."""
    try:
        found = take_snapshot(directory)
    except NoSpool:
        return None, [Finding("daemon", Level.OK, f"{directory} holds no spool yet")]
    except (SpoolError, OSError) as error:
        return None, [_unread("daemon", directory, error)]
    return found, list(check_daemon(found))


def pid_of(found: Snapshot | None, role: str) -> int | None:
    """The process of a worker; None when there is none."""
    return next((worker.pid for worker in found.workers if worker.role == role), None) if found else None


def look_for_others(config: Config, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Spools that are not the configured one, and have no daemon."""
    configured = config.spool.directory.resolve()
    for directory in find_spools(candidates(config, environ)):
        if directory == configured or (held := is_held(Layout(directory).lock)):
            continue
        yield _unseen(directory) if held is None else check_other(directory)


def check_daemon(found: Snapshot) -> Iterator[Finding]:
    """The troubles that the daemon of a spool itself reports, and whether there is a daemon."""
    if other := found.other_release:
        words, _, remedy = other.sentence.partition(": ")
        yield Finding("daemon", Level.PROBLEM, words, remedy)
        return
    if not found.workers:
        yield Finding(
            "daemon",
            Level.ADVICE,
            f"no daemon is running on {found.spool.directory}, where {waiting(found.backlog)}",
            "start bruce, or deliver them with brucectl drain" if found.backlog else "start bruce",
        )
        return
    said = [
        *(worker.sentence for worker in found.workers),
        found.lost_inputs,
        found.trouble,
        found.disk,
        *(view.sentence for view in found.full),
    ]
    wrong = [Finding("daemon", Level.PROBLEM, sentence) for sentence in said if sentence]
    yield from wrong
    if not wrong:
        yield Finding("daemon", Level.OK, "a daemon is running, and has nothing to complain about")


def check_clock(segments: list[Overview], now_ns: int | None = None) -> Iterator[Finding]:
    """Whether the newest message comes from the future: then the clock was set back."""
    now = time.time_ns() if now_ns is None else now_ns
    ahead = max((one.last_received_ns or 0 for one in segments), default=0) - now
    if ahead > AHEAD_NS:
        yield Finding(
            "clock",
            Level.ADVICE,
            f"the newest message was received {ahead / 3.6e12:,.1f} hours from now: the clock was set back",
            "see which is right; --from and --to go by the time that it was then",
        )


def candidates(config: Config, environ: Mapping[str, str]) -> Iterator[Path]:
    """The directories in which spools of other configurations may be.

    Beside the configured one, at the default places, and where /etc/bruce/bruce.toml says when that is not
    the configuration.
    """
    yield config.spool.directory.parent
    for file, uid in ((SYSTEM_FILE, 0), (None, os.getuid())):  # the service's, and this user's without a file
        yield default_paths(file, environ, uid)[0]
    if config.file != SYSTEM_FILE:
        try:
            given = read_file(SYSTEM_FILE).get(("spool", "directory"))
        except CliError:
            return
        if given:
            yield given.value


def find_spools(places: Iterator[Path]) -> list[Path]:
    """The directories that hold a spool, of these and of those directly in them; each once, in order."""
    found: set[Path] = set()
    for place in places:
        try:
            inside = [Path(entry.path) for entry in os.scandir(place) if entry.is_dir()]
        except OSError:
            continue
        found.update(path.resolve() for path in (place, *inside) if _is_spool(path))
    return sorted(found)


def _is_spool(path: Path) -> bool:
    layout = Layout(path)
    return os.path.isfile(layout.identity) and os.path.isdir(layout.segments)


def check_other(directory: Path) -> Finding:
    """A spool that no daemon looks after."""
    try:
        backlog = take_snapshot(directory).backlog
        size = size_in_words(used_bytes(Layout(directory)))
    except (SpoolError, OSError) as error:
        return _unread("other spool", directory, error)
    if backlog:
        return Finding(
            "other spool",
            Level.PROBLEM,
            f"{directory} is not the configured spool, and {waiting(backlog)} in it without a daemon",
            f"brucectl drain --spool {directory}",
        )
    return Finding(
        "other spool",
        Level.ADVICE,
        f"{directory} is not the configured spool, and takes {size}; all of it is delivered",
        "remove it, unless you want to replay it",
    )


def _unseen(directory: Path) -> Finding:
    return Finding(
        "other spool",
        Level.UNKNOWN,
        f"it cannot be seen whether a daemon has {directory}",
        "ask again as root, or as the user that bruce runs as",
    )


def _unread(check: str, directory: Path, error: Exception) -> Finding:
    words = error.strerror if isinstance(error, OSError) else str(error)
    return Finding(
        check,
        Level.UNKNOWN,
        f"{directory} cannot be read: {words}",
        "ask again as root, or as the user that bruce runs as"
        if isinstance(error, PermissionError)
        else "see brucectl inspect verify",
    )
