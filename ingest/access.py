"""Access to topics: the rules of `[access]`, the accounts that they name, and the loop that checks a message.

The first rule whose pattern matches a topic decides: the senders that it names may write, and no others. A
topic that matches no pattern is open to every sender. In a pattern `*` matches any number of characters, `?`
matches one.

The kernel identifies a sender: uid and gid of the process, at the time of sending (SCM_CREDENTIALS) or of
connecting (SO_PEERCRED). Neither tells its supplementary groups. So a group means the processes that run in
it, and the users that the host's database lists as its members when the rules are read. By TCP the sender may
be gone before the kernel is asked, so no message has a uid; a rule can name all of TCP.

The user that runs bruce may write to every topic: the spool is that user's own, and messages of ack_socket
come under its uid (ingest.acknowledger).

The host may get its users and groups from a directory elsewhere (nsswitch.conf), which may not answer for
minutes. A supervisor that waited for it would start no successor, and would not answer the service manager.
So a child process asks, and is ended when it takes too long (`look_up`).
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import select
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ingest.errors import BadAccessRule, NoAccounts
from ingest.role import die_with
from spool.format.wire import TOPIC_SIZE_BYTES, load_be16, topic_at
from spool.native.kernel import kernel, subkernel
from spool.native.memory import Address, address_of, load_i64, load_u8

LOOK_UP_S = 10.0
"""For all names together: far below half of a watchdog's time."""
EVERYBODY, TCP = "everybody", "tcp"
NO_ID = 0xFFFFFFFF
"""A uid or gid that is not known."""
TCP_GID = -1
"""In place of a gid: the sender uses TCP."""
_RULES, _OWN, _HEAD_WORDS = 0, 8, 2
_ROW_WORDS = 7
_PATTERN, _PATTERN_BYTES, _DOORS, _UIDS, _UID_COUNT, _GIDS, _GID_COUNT = (8 * n for n in range(_ROW_WORDS))
_ALL, _BY_TCP = 1, 2
_STAR, _ANY = ord("*"), ord("?")


@dataclass(frozen=True, slots=True)
class Senders:
    """The senders that one rule names."""

    uids: frozenset[int]
    gids: frozenset[int]
    everybody: bool
    tcp: bool


class Rules:
    """The rules in memory, as kernels read them.

    `address` is 0 when there is no rule, else that of int64 words: the number of rules, and the uid that runs
    bruce; then for each rule addresses and lengths of its pattern, its uids and its gids (both sorted).
    """

    def __init__(self, rules: Mapping[str, Sequence[str]], own_uid: int | None = None) -> None:
        """`rules`: senders by pattern, in order. Raises BadAccessRule, NoAccounts."""
        self._kept: list[npt.NDArray[np.int64] | npt.NDArray[np.uint8]] = []
        self.senders = resolve(rules)
        """Pattern and senders of each rule, as resolved on this host, in order."""
        rows = [self._row(*rule) for rule in self.senders]
        head = [len(rows), os.geteuid() if own_uid is None else own_uid]
        self._words = np.array(sum(rows, head), np.int64)
        self.address = address_of(self._words) if rows else Address(0)

    def _row(self, pattern: str, senders: Senders) -> list[int]:
        text = np.frombuffer(pattern.encode(), np.uint8)
        uids, gids = (np.array(sorted(ids), np.int64) for ids in (senders.uids, senders.gids))
        self._kept += [text, uids, gids]
        doors = _ALL * senders.everybody | _BY_TCP * senders.tcp
        return [address_of(text), len(text), doors, address_of(uids), len(uids), address_of(gids), len(gids)]

    def permits(self, topic: bytes, uid: int, gid: int) -> bool:
        """The decision of the compiled loops for this topic and sender."""
        name = np.frombuffer(topic + b"\0", np.uint8)
        return not self.address or bool(_permits(self.address, address_of(name), len(topic), uid, gid))


def resolve(rules: Mapping[str, Sequence[str]]) -> list[tuple[str, Senders]]:
    """Look up the names of each rule on this host: (pattern, senders), in order.

    Raises BadAccessRule for a name that this host does not know, NoAccounts when it does not answer.
    """
    asked = {
        name for names in rules.values() for name in names if name.startswith(("user:", "group:", "gid:"))
    }
    accounts = look_up(asked)
    return [(pattern, _senders(pattern, names, accounts)) for pattern, names in rules.items()]


def _senders(pattern: str, names: Sequence[str], accounts: Mapping[str, Account]) -> Senders:
    uids, gids = set[int](), set[int]()
    for name in names:
        kind, _, value = name.partition(":")
        if kind in ("user", "group") and name not in accounts:
            raise BadAccessRule(pattern, f"there is no {kind} {value!r} on this host")
        if kind == "uid":
            uids.add(int(value))
        elif kind == "user":
            uids.add(accounts[name].number)
        elif kind in ("gid", "group"):
            # A number that has no name has no members.
            group = accounts.get(name) or Account(int(value))
            gids.add(group.number)
            uids |= group.members
    return Senders(frozenset(uids), frozenset(gids), everybody=EVERYBODY in names, tcp=TCP in names)


@dataclass(frozen=True, slots=True)
class Account:
    """A user, or a group with the users that the host lists in it."""

    number: int
    members: frozenset[int] = frozenset()


def look_up(names: Collection[str], within_s: float = LOOK_UP_S) -> dict[str, Account]:
    """Look up `user:NAME`, `group:NAME` and `gid:NUMBER`: accounts by name; an unknown name has none.

    Forks: only for a process without threads. Raises NoAccounts when the host does not answer in time.
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
    """Read the answer, which the child sends complete; empty when its first byte does not come in time."""
    poll = select.poll()
    poll.register(receiving, select.POLLIN)
    if not poll.poll(1000 * within_s):
        return b""
    with os.fdopen(os.dup(receiving), "rb") as file:
        return file.read()


def _answer(parent: int, names: Collection[str], sending: int) -> NoReturn:
    """In the child: ask, send the answer, and end, whatever happens."""
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


@kernel
def is_permitted(rules: Address, message: Address, uid: int, gid: int) -> bool:
    """Whether this sender may write the well-formed message at an address. `rules`: Rules.address, not 0."""
    topic = topic_at(message)
    return _permits(rules, Address(topic + TOPIC_SIZE_BYTES), load_be16(topic), uid, gid)


@kernel
def _permits(rules: Address, topic: Address, size: int, uid: int, gid: int) -> bool:
    if uid == load_i64(rules + _OWN):
        return True
    for number in range(load_i64(rules + _RULES)):
        row = rules + 8 * (_HEAD_WORDS + number * _ROW_WORDS)
        if not _fits(load_i64(row + _PATTERN), load_i64(row + _PATTERN_BYTES), topic, size):
            continue
        doors = load_i64(row + _DOORS)
        if doors & _ALL or (doors & _BY_TCP and gid == TCP_GID):
            return True
        if uid != NO_ID and _holds(load_i64(row + _UIDS), load_i64(row + _UID_COUNT), uid):
            return True
        return gid != NO_ID and _holds(load_i64(row + _GIDS), load_i64(row + _GID_COUNT), gid)
    return True


@subkernel
def _fits(pattern: Address, length: int, text: Address, size: int) -> bool:
    """Whether a pattern matches the whole text. On a mismatch the last star takes one more character."""
    p = t = again = 0
    star = -1
    while t < size:
        wanted = load_u8(pattern + p) if p < length else -1
        if wanted == _STAR:
            star, again = p, t
            p += 1
        elif wanted in (_ANY, load_u8(text + t)):
            p += 1
            t += 1
        elif star >= 0:
            again += 1
            p, t = star + 1, again
        else:
            return False
    while p < length and load_u8(pattern + p) == _STAR:
        p += 1
    return p == length


@subkernel
def _holds(ids: Address, count: int, wanted: int) -> bool:
    """Whether a sorted int64 array at an address contains an id."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if load_i64(ids + 8 * middle) < wanted:
            low = middle + 1
        else:
            high = middle
    return low < count and load_i64(ids + 8 * low) == wanted
