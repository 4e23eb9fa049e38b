"""The `[[input]]` tables of bruce.toml, and all places where messages come in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import ConfigError
from cli.settings import Settings
from ingest.inputs import DATAGRAM, STREAM, TCP, Door, Input

if TYPE_CHECKING:
    from cli.config import IngestOptions


def read_inputs(settings: Settings, mode: int, group: str | None) -> tuple[Input, ...]:
    """One for each table, with this mode and group where it has none of its own. Raises ConfigError."""
    tables: dict[str, dict[str, Any]] = {}
    places: dict[str, str] = {}
    for path, setting in settings.items():
        if path[0] == "input":
            tables.setdefault(path[1], {})[path[2]] = setting.value
            places[path[1]] = setting.where
    return tuple(_input(number, table, places[number], mode, group) for number, table in tables.items())


def _input(number: str, table: dict[str, Any], where: str, mode: int, group: str | None) -> Input:
    kinds = [kind for kind in (DATAGRAM, STREAM, TCP) if kind in table]
    if len(kinds) != 1:
        raise ConfigError(where, f"[[input]] no. {number}: expected one of datagram, stream and tcp")
    if kinds == [TCP] and len(table) > 1:
        raise ConfigError(where, f"[[input]] no. {number}: a TCP port has neither mode nor group")
    if kinds == [TCP]:
        return Input(TCP, table[TCP])
    return Input(kinds[0], table[kinds[0]], table.get("mode", mode), table.get("group", group))


def check_inputs(options: IngestOptions, settings: Settings) -> None:
    """Whether each place is named once. Raises ConfigError."""
    seen: set[Path | int | None] = {
        options.datagram_socket,
        options.ack_socket,
        options.stream_socket,
        options.tcp_port,
    }
    for one in options.inputs:
        if one.place in seen:
            where = next(setting.where for path, setting in settings.items() if path[0] == "input")
            raise ConfigError(
                where, f"[[input]] {one.kind} = {one.place}: named twice; each place is one input"
            )
        seen.add(one.place)


def wanted_inputs(options: IngestOptions, handed: Sequence[Door]) -> list[Input]:
    """Those to be made. Where a datagram socket was handed over, [ingest] datagram_socket is not."""
    mode, group = options.socket_mode, options.socket_group
    given = any(door.activated and door.input.kind == DATAGRAM for door in handed)
    found = [] if given else [Input(DATAGRAM, options.datagram_socket, mode, group)]
    if options.stream_socket:
        found.append(Input(STREAM, options.stream_socket, mode, group))
    if options.tcp_port:
        found.append(Input(TCP, options.tcp_port))
    return [*found, *options.inputs]
