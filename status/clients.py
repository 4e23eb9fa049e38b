"""The clients of the status page, and the ones that are closed when there are too many.

A new one is always let in. At the limit, each peer that has more than an equal share gives up what it has
beyond that: connections without a request first, of these the oldest. A peer is an address; on this host,
where all have the same address, it is the user (spool.native.peers).
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field

from tornado.iostream import IOStream

from spool.native.peers import ends_of, users_of

PATIENCE_S = 30.0
"""For a client to read its answer, and for headers and body of a request to come."""
MOST_CONNECTIONS = 256
"""Open at a time. By default a process has 1,024 descriptors."""
MOST_LOOKING = 32
"""Streams open at a time: each costs some memory; one look a second serves all."""
MOST_UNREAD_BYTES = 32 << 20
"""Of answers that clients have not read yet, the newest aside."""
_NETWORK_BITS = {4: 32, 6: 64}
"""Of an address, as far as it tells one peer from another."""


@dataclass(slots=True)
class Client:
    """One connection."""

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


class Clients:
    """All connections."""

    def __init__(self, most: int = MOST_CONNECTIONS, patience_s: float = PATIENCE_S) -> None:
        """`most`: connections. `patience_s`: with one that sends or reads nothing."""
        self._clients: dict[IOStream, Client] = {}
        self._most, self.patience_s = most, patience_s

    def admit(self, stream: IOStream, address: str) -> None:
        """Let one in, and close others when there are too many."""
        if len(self._clients) >= self._most:
            self._make_room()
        self._clients[stream] = Client(stream, address)

    def leave(self, stream: IOStream) -> None:
        """Forget one that is closed."""
        self._clients.pop(stream, None)

    def ask(self, stream: IOStream) -> None:
        """Note its request."""
        self._mark(stream, busy=True, unread=0)

    def answer(self, stream: IOStream, size: int) -> None:
        """Note its answer; with too many unread bytes, close the oldest clients of the peer with most."""
        self._mark(stream, busy=True, unread=size)
        others = [
            client for client in self._clients.values() if client.unread and client.stream is not stream
        ]
        if sum(client.unread for client in others) > MOST_UNREAD_BYTES:
            self._name_peers()
        while sum(client.unread for client in others) > MOST_UNREAD_BYTES:
            by_peer: Counter[str] = Counter()
            for client in others:
                by_peer[client.peer] += client.unread
            oldest = self._oldest(others, by_peer)
            others.remove(oldest)
            self._dismiss(oldest)

    def rest(self, stream: IOStream) -> None:
        """Note that its answer is read."""
        self._mark(stream, busy=False, unread=0)

    def look(self, stream: IOStream) -> bool:
        """Give it one of the few streams of events; False when its peer has its share of them."""
        looking = [client for client in self._clients.values() if client.looking]
        if len(looking) >= MOST_LOOKING:
            self._name_peers()
            counts = Counter(client.peer for client in looking)
            newcomer = self._clients.get(stream)
            if not newcomer or counts[newcomer.peer] + 1 >= max(counts.values()):
                return False
            self._dismiss(self._oldest(looking, counts))
        if stream in self._clients:
            self._clients[stream].looking = True
        return True

    @staticmethod
    def _oldest(clients: list[Client], by_peer: Counter[str]) -> Client:
        """The oldest of the peer with most."""
        greedy = by_peer.most_common(1)[0][0]
        return min((client for client in clients if client.peer == greedy), key=lambda one: one.since)

    def _mark(self, stream: IOStream, *, busy: bool, unread: int) -> None:
        client = self._clients.get(stream)
        if client:
            client.busy, client.unread, client.since = busy, unread, time.monotonic()

    def _make_room(self) -> None:
        self._name_peers()
        by_peer: defaultdict[str, list[Client]] = defaultdict(list)
        for client in sorted(self._clients.values(), key=lambda one: (one.busy, one.since)):
            by_peer[client.peer].append(client)
        # One more: that of the client for which there is no room.
        share = max(1, self._most // (len(by_peer) + 1))
        for clients in by_peer.values():
            for client in clients[: max(0, len(clients) - share)]:
                self._dismiss(client)
        # Each has no more than its share now.
        while len(self._clients) >= self._most:
            self._dismiss(min(self._clients.values(), key=lambda one: (one.busy, one.since)))

    def _dismiss(self, client: Client) -> None:
        self.leave(client.stream)
        client.stream.close()

    def _name_peers(self) -> None:
        """Find the peers that are not known yet, and forget clients that have gone meanwhile."""
        self._clients = {stream: client for stream, client in self._clients.items() if not stream.closed()}
        local = []
        for client in self._clients.values():
            if client.peer:
                continue
            address = ipaddress.ip_address(client.address.partition("%")[0])
            client.peer = str(ipaddress.ip_network((address, _NETWORK_BITS[address.version]), strict=False))
            # It may have gone.
            with suppress(OSError):
                if address.is_loopback:
                    local.append((client, ends_of(client.stream.socket)))
        for (client, _), uid in zip(local, users_of([ends for _, ends in local]), strict=True):
            if uid is not None:
                client.peer = f"uid {uid}"
