"""Users and groups of this host, asked for a limited time.

The host may have them of a directory elsewhere (nsswitch.conf), which may not answer for minutes. A
supervisor that waits for that starts no successor, and the service manager hears nothing of it. So a child
asks, which can be ended.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import select
import signal
from collections.abc import Collection
from dataclasses import dataclass
from typing import NoReturn

from ingest.errors import NoAccounts
from ingest.role import die_with

ASK_S = 10.0
"""For all questions together: far below half of a watchdog's time."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user, or a group with the users that the host lists in it."""

    number: int
    members: frozenset[int] = frozenset()


def look_up(names: Collection[str], within_s: float = ASK_S) -> dict[str, Account]:
    """Those that the host knows of `user:NAME`, `group:NAME` and `gid:NUMBER`. For a process without threads.

    Raises NoAccounts when it does not answer in time.
    """
    if not names:
        return {}
    receiving, sending = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    child = os.fork()
    if not child:
        _answer(parent, names, sending)
    os.close(sending)
    try:
        said = _read(receiving, within_s)
    finally:
        os.close(receiving)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not said:
        raise NoAccounts(within_s)
    return {name: Account(number, frozenset(members)) for name, (number, members) in json.loads(said).items()}


def _read(receiving: int, within_s: float) -> bytes:
    """The answer; nothing, when none comes. It is sent when it is complete: its beginning is waited for."""
    if not select.select([receiving], [], [], within_s)[0]:
        return b""
    with os.fdopen(os.dup(receiving), "rb") as file:
        return file.read()


def _answer(parent: int, names: Collection[str], sending: int) -> NoReturn:
    """In the child: ask, say what came of it, and end, whatever happens."""
    try:
        die_with(parent)
        found = {name: account for name in names if (account := _ask(name))}
        with os.fdopen(sending, "w") as file:
            file.write(json.dumps(found))
    finally:
        os._exit(0)


def _ask(name: str) -> tuple[int, list[int]] | None:
    kind, _, value = name.partition(":")
    try:
        if kind == "user":
            return pwd.getpwnam(value).pw_uid, []
        group = grp.getgrgid(int(value)) if kind == "gid" else grp.getgrnam(value)
    except KeyError:
        return None
    return group.gr_gid, [uid for member in group.gr_mem if (uid := _uid(member)) is not None]


def _uid(member: str) -> int | None:
    try:
        return pwd.getpwnam(member).pw_uid
    except KeyError:
        # The group's list may be older than the user's end.
        return None
