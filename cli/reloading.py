"""What a reload changes: which settings take effect, and which workers get new ones.

A worker has its settings from the moment it was forked. So those whose settings changed make way for a
successor: the keeper at any moment, as after a SIGKILL; the ingest worker between two bursts; the delivery
worker when what it has in flight is acknowledged; the status worker at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cli.config import Config, check_room

FIXED = (
    ("ingest", "datagram_socket"),
    ("ingest", "ack_socket"),
    ("ingest", "stream_socket"),
    ("ingest", "socket_mode"),
    ("ingest", "socket_group"),
    ("ingest", "tcp_port"),
    ("ingest", "max_stream_message_bytes"),
    ("spool", "directory"),
    ("spool", "segment_bytes"),
    ("dispatch", "mode"),
    ("status", "port"),
    ("log", "format"),
)
"""Table and key of what is decided when bruce starts."""


def _delivery(config: Config) -> object:
    """All but where messages come in and how they are kept; `file` and `first_try` decide nothing."""
    rest = dataclasses.replace(config, file=None, first_try=False)
    chosen = [getattr(rest, field.name) for field in dataclasses.fields(rest) if field.name not in _OTHERS]
    return [*chosen, config.spool.quotas]


_OTHERS = ("access", "ingest", "spool", "status", "log")
_SETTINGS: dict[str, Callable[[Config], object]] = {
    "keeper": lambda config: config.spool,
    "delivery": _delivery,
    "status": lambda config: config.status,
}
"""By role, what its worker was told."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a reload comes to."""

    config: Config
    """To be in force from here on."""
    roles: list[str]
    """Workers that are to be replaced."""
    kept: list[str]
    """Settings that have changed in the file, and need a restart."""


def compare(old: Config, new: Config) -> Change:
    """What changes from `old` to `new`, once bruce runs. Raises ConfigError."""
    kept = []
    for table, key in FIXED:
        before = getattr(getattr(old, table), key)
        if getattr(getattr(new, table), key) != before:
            kept.append(f"[{table}] {key}")
            new = _with(new, table, **{key: before})
    check_room(new.spool, str(new.file))
    return Change(new, [role for role, of in _SETTINGS.items() if of(old) != of(new)], kept)


def _with(config: Config, table: str, **values: Any) -> Config:
    return dataclasses.replace(config, **{table: dataclasses.replace(getattr(config, table), **values)})
