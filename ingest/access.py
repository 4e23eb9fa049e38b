"""Who may write to which topics: the rules of `[access]`, and the loop that asks them.

The first rule whose pattern fits a topic decides: who it names may write, and nobody else. A topic that no
pattern fits is everybody's. In a pattern `*` stands for any number of characters, `?` for one.

A sender is known by what the kernel says of it: uid and gid of the process, at the time of sending
(SCM_CREDENTIALS) or of connecting (SO_PEERCRED). Of its supplementary groups neither says anything. So a
group stands for the processes that run in it, and for the users that the host's database counts among its
members when the rules are read. By TCP nobody says who he is; a rule can name that door as a whole.

Who runs bruce may write to every topic: the spool is that user's own, and messages of ack_socket come with
that name (ingest.acknowledger).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest.accounts import Account, look_up
from ingest.errors import BadAccessRule
from spool.kernel import address_of, kernel, load_i64, load_u8
from spool.wire import load_be16

EVERYBODY, TCP = "everybody", "tcp"
NO_ID = 0xFFFFFFFF
"""Stands for a uid or gid that is not known."""
TCP_GID = -1
"""Stands for the gid of who came by TCP."""
_RULES, _OWN, _HEAD_WORDS = 0, 8, 2
_ROW_WORDS = 7
_PATTERN, _PATTERN_BYTES, _DOORS, _UIDS, _UID_COUNT, _GIDS, _GID_COUNT = (8 * n for n in range(_ROW_WORDS))
_ALL, _BY_TCP = 1, 2
_STAR, _ANY = ord("*"), ord("?")


@dataclass(frozen=True, slots=True)
class Senders:
    """Those that one rule names."""

    uids: frozenset[int]
    gids: frozenset[int]
    everybody: bool
    tcp: bool


class Rules:
    """The rules in memory, as kernels read them.

    `address` is 0 when there is none, else that of int64 words: how many there are, and the uid of who runs
    bruce; then for each rule addresses and lengths of its pattern, its uids and its gids (both sorted).
    """

    def __init__(self, rules: Mapping[str, Sequence[str]], own_uid: int | None = None) -> None:
        """`rules`: senders by pattern, in order. Raises BadAccessRule, NoAccounts."""
        self._kept: list[npt.NDArray[np.int64] | npt.NDArray[np.uint8]] = []
        self.senders = resolve(rules)
        """What the names mean on this host, in order."""
        rows = [self._row(*rule) for rule in self.senders]
        head = [len(rows), os.geteuid() if own_uid is None else own_uid]
        self._words = np.array(sum(rows, head), np.int64)
        self.address = address_of(self._words) if rows else 0

    def _row(self, pattern: str, senders: Senders) -> list[int]:
        text = np.frombuffer(pattern.encode(), np.uint8)
        uids, gids = (np.array(sorted(ids), np.int64) for ids in (senders.uids, senders.gids))
        self._kept += [text, uids, gids]
        doors = _ALL * senders.everybody | _BY_TCP * senders.tcp
        return [address_of(text), len(text), doors, address_of(uids), len(uids), address_of(gids), len(gids)]

    def permits(self, topic: bytes, uid: int, gid: int) -> bool:
        """What the kernels decide of a topic's name."""
        name = np.frombuffer(topic + b"\0", np.uint8)
        return not self.address or bool(_permits(self.address, address_of(name), len(topic), uid, gid))


def resolve(rules: Mapping[str, Sequence[str]]) -> list[tuple[str, Senders]]:
    """Who is meant by the names of each rule, in order.

    Raises BadAccessRule for who is not on this host, NoAccounts when the host does not say.
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


@kernel
def is_permitted(rules: int, message: int, uid: int, gid: int) -> bool:
    """Whether this sender may write the well-formed message at an address. `rules`: Rules.address, not 0."""
    topic = message + 10 + 4 * load_u8(message + 5)
    return _permits(rules, topic + 2, load_be16(topic), uid, gid)


@kernel
def _permits(rules: int, topic: int, size: int, uid: int, gid: int) -> bool:
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


@kernel
def _fits(pattern: int, length: int, text: int, size: int) -> bool:
    """Whether a pattern stands for the whole of a text. On a mismatch the last star takes one more."""
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


@kernel
def _holds(ids: int, count: int, wanted: int) -> bool:
    """Whether an id is among those that are sorted at an address."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if load_i64(ids + 8 * middle) < wanted:
            low = middle + 1
        else:
            high = middle
    return low < count and load_i64(ids + 8 * low) == wanted


def compile_kernels() -> None:
    """Compile, or load from the cache, what asking takes."""
    rules, message = Rules({"*": []}), np.zeros(64, np.uint8)
    is_permitted(rules.address, address_of(message), 0, 0)
