"""The connections to the status page, and which of them go when there are too many.

A new one is always let in. At the limit, each peer that has more than an equal share gives up what it has
beyond that: connections without a request first, of these the oldest. A peer is an address; on this host,
where all come from the same one, it is the user, whom the kernel's table of sockets tells.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tornado.iostream import IOStream

MOST_CONNECTIONS = 256
"""Open at a time. A process has 1,024 descriptors where nobody gives it more."""
MOST_LOOKING = 32
"""Streams open at a time: each costs some memory, and a look a second serves all."""
MOST_UNREAD_BYTES = 32 << 20
"""Of answers that were made and not read yet, the newest aside."""
_TABLES = {4: Path("/proc/self/net/tcp"), 16: Path("/proc/self/net/tcp6")}
_MAPPED = "0000000000000000FFFF0000"
"""Before an IPv4 address in the table of IPv6."""
_NETWORK_BITS = {4: 32, 6: 64}
"""Of an address, as far as it tells one peer from another."""


@dataclass(slots=True)
class Guest:
    """A connection."""

    stream: IOStream
    address: str
    since: float = field(default_factory=time.monotonic)
    """When it came, or when its last request came or was answered."""
    busy: bool = False
    """There is a request, or an answer that was not read yet."""
    looking: bool = False
    """It has a stream of events."""
    unread: int = 0
    """Bytes of its answer."""
    peer: str = ""
    """Empty while it is not known."""


class Crowd:
    """All connections."""

    def __init__(self) -> None:
        self._guests: dict[IOStream, Guest] = {}

    def admit(self, stream: IOStream, address: str) -> None:
        """Let one in, and others go where there are too many."""
        if len(self._guests) >= MOST_CONNECTIONS:
            self._make_room()
        self._guests[stream] = Guest(stream, address)

    def leave(self, stream: IOStream) -> None:
        """It is closed."""
        self._guests.pop(stream, None)

    def ask(self, stream: IOStream) -> None:
        """It has a request."""
        self._mark(stream, busy=True, unread=0)

    def answer(self, stream: IOStream, size: int) -> None:
        """An answer is on its way; the oldest of the peer with most of them go, where they are too many."""
        self._mark(stream, busy=True, unread=size)
        others = [guest for guest in self._guests.values() if guest.unread and guest.stream is not stream]
        if sum(guest.unread for guest in others) > MOST_UNREAD_BYTES:
            self._name_peers()
        while sum(guest.unread for guest in others) > MOST_UNREAD_BYTES:
            by_peer: Counter[str] = Counter()
            for guest in others:
                by_peer[guest.peer] += guest.unread
            oldest = self._oldest(others, by_peer)
            others.remove(oldest)
            self._dismiss(oldest)

    def rest(self, stream: IOStream) -> None:
        """The answer is read."""
        self._mark(stream, busy=False, unread=0)

    def look(self, stream: IOStream) -> bool:
        """Have a stream of events, of which there are few; False: the peer has its share of them."""
        looking = [guest for guest in self._guests.values() if guest.looking]
        if len(looking) >= MOST_LOOKING:
            self._name_peers()
            counts = Counter(guest.peer for guest in looking)
            newcomer = self._guests.get(stream)
            if not newcomer or counts[newcomer.peer] + 1 >= max(counts.values()):
                return False
            self._dismiss(self._oldest(looking, counts))
        if stream in self._guests:
            self._guests[stream].looking = True
        return True

    @staticmethod
    def _oldest(guests: list[Guest], by_peer: Counter[str]) -> Guest:
        """Of the peer that has most."""
        greedy = by_peer.most_common(1)[0][0]
        return min((guest for guest in guests if guest.peer == greedy), key=lambda one: one.since)

    def _mark(self, stream: IOStream, *, busy: bool, unread: int) -> None:
        guest = self._guests.get(stream)
        if guest:
            guest.busy, guest.unread, guest.since = busy, unread, time.monotonic()

    def _make_room(self) -> None:
        self._name_peers()
        by_peer: defaultdict[str, list[Guest]] = defaultdict(list)
        for guest in sorted(self._guests.values(), key=lambda one: (one.busy, one.since)):
            by_peer[guest.peer].append(guest)
        # One more: that of the connection for which there is no room.
        share = max(1, MOST_CONNECTIONS // (len(by_peer) + 1))
        for guests in by_peer.values():
            for guest in guests[: max(0, len(guests) - share)]:
                self._dismiss(guest)
        # Where each has no more than its share.
        while len(self._guests) >= MOST_CONNECTIONS:
            self._dismiss(min(self._guests.values(), key=lambda one: (one.busy, one.since)))

    def _dismiss(self, guest: Guest) -> None:
        self.leave(guest.stream)
        guest.stream.close()

    def _name_peers(self) -> None:
        """Find out who those are of whom it is not known, and forget those that have gone meanwhile."""
        self._guests = {stream: guest for stream, guest in self._guests.items() if not stream.closed()}
        unknown = [guest for guest in self._guests.values() if not guest.peer]
        local = {}
        for guest in unknown:
            address = ipaddress.ip_address(guest.address.partition("%")[0])
            guest.peer = str(ipaddress.ip_network((address, _NETWORK_BITS[address.version]), strict=False))
            if address.is_loopback:
                local[guest.stream.socket] = guest
        for one, uid in users_of(list(local)).items():
            local[one].peer = f"uid {uid}"


def users_of(connections: list[socket.socket]) -> dict[socket.socket, int]:
    """Who has the other ends of connections on this host, as far as the kernel tells; in one look."""
    wanted = {}
    for one in connections:
        # It may have gone.
        with suppress(OSError):
            wanted[_shown(one.getpeername()), _shown(one.getsockname())] = one
    ports = {f":{server.partition(':')[2]} " for _, server in wanted}
    found = {}
    for table in _TABLES.values() if wanted else ():
        with suppress(OSError):
            for line in table.read_text(encoding="ascii").splitlines():
                if any(port in line for port in ports):
                    _, client, server, _, _, _, _, uid, _, inode, *_ = line.replace(_MAPPED, "").split()
                    # What has no inode is no process's any more, and would pass for root's.
                    if (client, server) in wanted and inode != "0":
                        found[wanted[client, server]] = int(uid)
    return found


def _shown(address: tuple[str, int]) -> str:
    """As the kernel's table has it: in words of the processor's order."""
    packed = ipaddress.ip_address(address[0].partition("%")[0]).packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words).removeprefix(_MAPPED) + f":{address[1]:04X}"
