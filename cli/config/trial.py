"""A configuration before it is in force: tried out, and compared with the one in force.

`try_parts` finds what only the parts of bruce, or this host, can refuse. The daemon calls it before it
starts and at each reload; `config check` and `doctor` call it, too. `compare` tells a reload which workers
to replace.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cli.config.config import Config, check_room, given_settings
from cli.terminal.errors import ConfigError
from dispatch.client import check as check_properties
from dispatch.errors import BadProperty
from dispatch.options import WHOLE_ACKS, DispatchOptions, properties, topic_properties
from ingest.access import Rules, look_up
from ingest.errors import BadAccessRule
from ingest.sockets.inputs import DELIVERED
from router import BadPartitioner
from router.partition import Partitioners
from status.access import BadAccess, open_access

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
_OTHERS = ("access", "ingest", "spool", "status", "witness", "log")
"""Tables that no delivery worker uses."""


ACKS_REMEDY = 'leave out "acks", which is then all'


@dataclass(frozen=True, slots=True)
class Change:
    """The result of a reload."""

    config: Config
    """To be in force from here on."""
    roles: list[str]
    """Workers that are to be replaced."""
    kept: list[str]
    """Settings that have changed in the file, and need a restart."""


def try_parts(config: Config) -> Rules:
    """The rules of [access], when nothing is refused.

    Raises ConfigError, whose one line names file, table and key; NoAccounts when this host does not answer.
    """
    try:
        Partitioners(config.partitioners)
        check_properties(config.dispatch)
        open_access(config.status)
        _try_groups(config)
        _try_inputs(config)
        return Rules(config.access)
    except BadProperty as error:
        raise _refusal(config, error, "kafka", error.key) from None
    except BadAccess as error:
        raise _refusal(config, error, "status", error.key) from None
    except (BadAccessRule, BadPartitioner) as error:
        raise _refusal(config, error) from None


def weak_acks(options: DispatchOptions) -> Iterator[str]:
    """How "acks" gives away at_least_once: a sentence for each table in which it does."""
    if options.mode == "at_most_once":
        return
    tables = [("[kafka]", properties(options))]
    tables += [(f'[topics."{name}"]', topic_properties(options, name)) for name in options.topics]
    for table, given in tables:
        acks = given.get("acks", "all")
        if acks == "0":
            yield (
                f'{table} "acks" is 0 in {options.mode}: no broker acknowledges anything, so messages that '
                "are lost on the way count as delivered"
            )
        elif acks not in WHOLE_ACKS:
            yield (
                f'{table} "acks" is {acks}: messages that one broker has acknowledged are lost with that '
                "broker"
            )


def _try_inputs(config: Config) -> None:
    """Whether they can keep what they promise, also where a reload leaves the mode. Raises ConfigError."""
    waits = any(one.acknowledge == DELIVERED for one in config.ingest.inputs)
    if waits and config.dispatch.mode == "at_most_once":
        sentence = (
            '[[input]] acknowledge = "delivered": [dispatch] mode = "at_most_once" waits for no answer of '
            "Kafka, so leave it out, or start with another mode"
        )
        raise _refusal(config, sentence, "dispatch", "mode")


def _try_groups(config: Config) -> None:
    """Whether the groups of sockets are there. Raises ConfigError, NoAccounts."""
    wanted = list(_groups(config))
    known = look_up({f"group:{group}" for group, _ in wanted})
    for group, (table, key) in wanted:
        if f"group:{group}" not in known:
            shown = "[[input]]" if table == "input" else f"[{table}]"
            raise _refusal(
                config, f'{shown} {key} = "{group}": there is no such group on this host', table, key
            )


def _groups(config: Config) -> Iterator[tuple[str, tuple[str, str]]]:
    """Each group that is named, with table and key."""
    own = config.ingest.socket_group
    if own:
        yield own, ("ingest", "socket_group")
    for one in config.ingest.inputs:
        if one.group and one.group != own:
            yield one.group, ("input", "group")


def _refusal(config: Config, error: object, *path: str) -> ConfigError:
    """A ConfigError with the place of the setting: a variable that was given, or the file."""
    setting = given_settings(config.file, environ=os.environ).get(path)
    return ConfigError(setting.where if setting else str(config.file or "the environment"), str(error))


def compare(old: Config, new: Config) -> Change:
    """Compare a running bruce's configuration with a new one. Raises ConfigError.

    A worker has the settings that it was forked with. A successor replaces each worker whose settings
    changed: the keeper at any moment, as after a SIGKILL; the ingest worker between two bursts; the delivery
    worker when what it has in flight is acknowledged; the status worker at once.
    """
    kept = []
    for table, key in FIXED:
        before = getattr(getattr(old, table), key)
        if getattr(getattr(new, table), key) != before:
            kept.append(f"[{table}] {key}")
            new = _with(new, table, **{key: before})
    check_room(new.spool, str(new.file))
    return Change(new, [role for role, of in _SETTINGS.items() if of(old) != of(new)], kept)


def _delivery(config: Config) -> object:
    """All but where messages come in and how they are kept; `file` and `first_try` decide nothing."""
    rest = dataclasses.replace(config, file=None, first_try=False)
    chosen = [getattr(rest, field.name) for field in dataclasses.fields(rest) if field.name not in _OTHERS]
    return [*chosen, config.spool.quotas]


_SETTINGS: dict[str, Callable[[Config], object]] = {
    "keeper": lambda config: config.spool,
    "delivery": _delivery,
    "status": lambda config: (config.status, config.witness),
}
"""By role, the settings that its worker uses."""


def _with(config: Config, table: str, **values: Any) -> Config:
    return dataclasses.replace(config, **{table: dataclasses.replace(getattr(config, table), **values)})
