"""What is set, and where, for people and for programs; without secrets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cli.settings import Setting, Settings
from cli.toml import write_tables
from dispatch.options import CREDENTIAL

_SECRET = re.compile(r"password|secret|token|private|\.key\.pem|\.key$|credential|oauthbearer\.config|jaas")
HIDDEN = "(hidden)"


def as_toml(settings: Settings) -> str:
    """As a bruce.toml, which begins by saying where it comes from."""
    tables: dict[str, dict[str, object]] = {}
    for path, setting in _sorted(settings):
        tables.setdefault(".".join(path[:-1]), {})[path[-1]] = _shown(path, setting)
    places = sorted({setting.where for setting in settings.values()})
    said = "".join(f"# from {place}\n" for place in places) or "# nothing is set\n"
    return said + ("\n" + write_tables(tables) if tables else "")


def as_document(settings: Settings) -> dict[str, Any]:
    """For JSON, a row for each: table, key, value, where."""
    return {
        "settings": [
            {
                "table": ".".join(path[:-1]),
                "key": path[-1],
                "value": _shown(path, setting),
                "where": setting.where,
            }
            for path, setting in _sorted(settings)
        ]
    }


def is_secret(path: tuple[str, ...]) -> bool:
    """Whether the value of this setting is not to be shown."""
    key = path[-1]
    return path[0] == "kafka" and bool(_SECRET.search(key)) and not key.endswith(CREDENTIAL)


def _sorted(settings: Settings) -> list[tuple[tuple[str, ...], Setting]]:
    """By name; but rules and inputs in the order in which they stand."""
    in_order = ("access", "input")
    return sorted(settings.items(), key=lambda pair: pair[0][:1] if pair[0][0] in in_order else pair[0])


def _shown(path: tuple[str, ...], setting: Setting) -> object:
    if is_secret(path):
        return HIDDEN
    if path[-1] == "quota":
        return f"{setting.value:.0%}"
    if path[-1] == "socket_mode" or (path[0] == "input" and path[-1] == "mode"):
        return f"{setting.value:04o}"
    return str(setting.value) if isinstance(setting.value, Path) else setting.value
