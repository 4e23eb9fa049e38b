"""What is to be replayed: the selection as it was written, and the places that it stood for at first."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence

from cli.errors import BadArgument
from cli.span import parse_span
from spool.digest import digest
from spool.wanted import Wanted

_PARTITION_KEYS = range(-(1 << 31), 1 << 31)
_UIDS = range(1 << 32)


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """One selection, in the words of who asks for it."""

    since: str | None = None
    until: str | None = None
    topics: Sequence[str] = ()
    keys: Sequence[str] = ()
    partition_keys: Sequence[int] = ()
    uids: Sequence[int] = ()
    to_topic: str | None = None

    def check_says_something(self) -> None:
        """Raise BadArgument when it would be everything, without anybody having said so."""
        if not any((self.since, self.until, self.topics, self.keys, self.partition_keys, self.uids)):
            raise BadArgument(
                "say what to send again, with --from, --to, --topic, ...; --from 0 is everything"
            )

    def wanted(self) -> Wanted:
        """The messages that are meant, "-2h" being reckoned from now. Raises BadArgument."""
        _check("--partition-key", self.partition_keys, _PARTITION_KEYS)
        _check("--uid", self.uids, _UIDS)
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
