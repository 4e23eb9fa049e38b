"""A configuration tried out: what only the parts of bruce, or this host, can refuse of it.

The daemon does so before it starts and at each reload, `config check` and `doctor` when they are asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from cli.config import Config, given_settings
from cli.errors import ConfigError
from dispatch.client import check as check_properties
from dispatch.errors import BadProperty
from ingest.access import Rules
from ingest.accounts import look_up
from ingest.errors import BadAccessRule
from router.errors import BadPartitioner
from router.partition import Partitioners
from status.access import open_access
from status.errors import BadAccess


def try_parts(config: Config) -> Rules:
    """The rules of [access], when nothing is refused.

    Raises ConfigError, whose one line names file, table and key; NoAccounts when this host does not answer.
    """
    try:
        Partitioners(config.partitioners)
        check_properties(config.dispatch)
        open_access(config.status)
        _try_groups(config)
        return Rules(config.access)
    except BadProperty as error:
        raise _refusal(config, error, "kafka", error.key) from None
    except BadAccess as error:
        raise _refusal(config, error, "status", error.key) from None
    except (BadAccessRule, BadPartitioner) as error:
        raise _refusal(config, error) from None


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
    """It with the place where the setting comes from: a variable that was given, or the file."""
    setting = given_settings(config.file, environ=os.environ).get(path)
    return ConfigError(setting.where if setting else str(config.file or "the environment"), str(error))
