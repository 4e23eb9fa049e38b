"""Settings by table and key, each with the place it comes from: a file, or an environment variable.

A path such as ("spool", "max_bytes"), ("kafka", "linger.ms") or ("topics", "clicks", "partitioner") names
a setting. Values are checked one by one here; `cli.config` checks those that depend on one another.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.errors import ConfigError
from cli.kinds import (
    AbsolutePath,
    Address,
    Choice,
    CredentialName,
    GroupName,
    Kind,
    Mode,
    Partitioner,
    Property,
    SenderNames,
    Share,
    Size,
    Switch,
    TopicName,
    Whole,
)
from cli.log_options import FORMATS
from cli.small_file import read_small
from dispatch.options import CREDENTIAL, ENGINES, MODES
from spool.options import ALWAYS, INTERVAL

KIB = 1 << 10

TABLES: dict[str, dict[str, Kind]] = {
    # The address of a UNIX socket has 108 bytes, one of them the zero at its end.
    "ingest": {
        "datagram_socket": AbsolutePath(most_bytes=107),
        "ack_socket": AbsolutePath(most_bytes=107),
        "stream_socket": AbsolutePath(most_bytes=107),
        "socket_mode": Mode(),
        "socket_group": GroupName(),
        "tcp_port": Whole(1, 65535, "a TCP port"),
        "max_stream_message_bytes": Size(KIB),
    },
    "spool": {
        "directory": AbsolutePath(),
        "max_bytes": Size(4 * 256 * KIB),
        "min_free_bytes": Size(0),
        "when_full": Choice(("discard_newest", "block", "discard_oldest")),
        "keep_delivered_bytes": Size(0),
        "keep_delivered_hours": Whole(0, 876_000, "hours"),
        "segment_bytes": Size(256 * KIB, multiple_of=4096),
        "sync": Choice((INTERVAL, ALWAYS)),
        "recompress": Switch(),
        "max_topics": Whole(10, 1_000_000, "topics"),
        "sync_interval_ms": Whole(1, 10_000, "ms"),
        "sync_bytes": Size(4 * KIB),
    },
    "dispatch": {
        "engine": Choice(ENGINES),
        "mode": Choice(MODES),
        "progress_topic": TopicName(),
        "stamp": Switch(),
        "window_messages": Whole(1, 1_000_000, "messages"),
        "window_bytes": Size(64 * KIB),
        "drain_seconds": Whole(0, 86_400, "seconds"),
        "unknown_topic_seconds": Whole(0, 604_800, "seconds"),
        "dead_letter_topic": TopicName(),
        "discard_file": AbsolutePath(),
        "discard_file_bytes": Size(64 * KIB),
        "catch_up_bytes_per_second": Size(0),
    },
    "status": {
        "port": Whole(0, 65_535, "port numbers"),
        "address": Address(),
        "token_file": AbsolutePath(),
        "tls_certificate": AbsolutePath(),
        "tls_key": AbsolutePath(),
    },
    "log": {
        "format": Choice(FORMATS),
    },
}
INPUT_KEYS: dict[str, Kind] = {
    "datagram": AbsolutePath(most_bytes=107),
    "stream": AbsolutePath(most_bytes=107),
    "tcp": Whole(1, 65535, "a TCP port"),
    "mode": Mode(),
    "group": GroupName(),
}
TOPIC_KEYS: dict[str, Kind] = {
    "partitioner": Partitioner(("any", "round_robin", "partition_key", "murmur2", "crc32")),
    "rate": Whole(1, 1_000_000_000, "messages a second"),
    "rate_excess": Choice(("delay", "discard")),
    "quota": Share(),
    # What librdkafka can do per topic, of its producer's properties.
    **dict.fromkeys(
        ("acks", "request.timeout.ms", "compression.type", "compression.codec", "compression.level"),
        Property(),
    ),
}
_KAFKA_KEY, _CREDENTIAL_KEY = Property(), CredentialName()
ACCESS_KEY = SenderNames()

_MOST_SHOWN = 200
"""Characters of a value that is refused."""
_TOO_DEEP = "has tables or lists that are nested too deeply"
_MOST_DOTS = 2000
"""In one line: of several hundred brokers in bootstrap.servers there are fewer."""
_TABLE_NAMES = (*TABLES, "access", "input", "kafka", "topics")
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PATTERN = re.compile(r"[A-Za-z0-9._*?-]{1,249}")
_UNDERSCORED = {"log.level": "log_level", "enabled.events": "enabled_events"}
"""librdkafka's few properties that have an underscore, which a variable's name cannot tell from a dot."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A checked value, and where it was given."""

    value: Any
    where: str


Settings = dict[tuple[str, ...], Setting]


def read_file(path: Path) -> Settings:
    """The settings in a TOML file. Raises ConfigError."""
    where = str(path)
    try:
        return dict(_read_tables(_parse(path, where), where))
    except RecursionError:
        raise ConfigError(where, _TOO_DEEP) from None


def _parse(path: Path, where: str) -> dict[str, Any]:
    try:
        text = read_small(path).decode("utf-8")
        # Of a key of n parts tomllib keeps n tuples, the longest of n: with 12 KB of "a.a.a" 140 MB.
        if max((line.count(".") for line in text.splitlines()), default=0) > _MOST_DOTS:
            raise ConfigError(where, _TOO_DEEP)
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError(where, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(where, "is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(where, f"is not TOML: {error}") from None
    except ValueError:
        # Python reads no number of more than 4,300 digits.
        raise ConfigError(where, "has a number of too many digits") from None


def read_environment(environ: Mapping[str, str]) -> Settings:
    """The settings in variables such as BRUCE_SPOOL_MAX_BYTES. Raises ConfigError."""
    found: Settings = {}
    for name in sorted(environ):
        prefix, _, rest = name.partition("_")
        table, _, key = rest.lower().partition("_")
        if prefix == "BRUCE" and table in _TABLE_NAMES:
            path, kind = _find_variable(name, table, key)
            found[path] = _check(path, kind, kind.from_text(environ[name]), name)
    return found


def _read_tables(tables: dict[str, Any], where: str) -> Iterator[tuple[tuple[str, ...], Setting]]:
    for name, table in tables.items():
        if name not in _TABLE_NAMES:
            what = "there is no table" if isinstance(table, dict) else "outside of a table there is no key"
            raise ConfigError(where, f"{what} {name!r}{_nearest(name, _TABLE_NAMES, 'tables')}")
        if name == "input":
            yield from _read_inputs(table, where)
            continue
        if not isinstance(table, dict):
            raise ConfigError(where, f"{name!r} is a table, [{name}], and no value")
        if name == "topics":
            yield from _read_topics(table, where)
        elif name == "access":
            yield from _read_access(table, where)
        else:
            yield from _read_table((name,), TABLES.get(name), table, where)


def _read_inputs(inputs: object, where: str) -> Iterator[tuple[tuple[str, ...], Setting]]:
    if not isinstance(inputs, list) or not all(isinstance(table, dict) for table in inputs):
        raise ConfigError(where, "each input is a table of its own: write [[input]], in two brackets")
    for number, table in enumerate(inputs, 1):
        yield from _read_table(("input", str(number)), INPUT_KEYS, table, where)


def _read_topics(topics: dict[str, Any], where: str) -> Iterator[tuple[tuple[str, ...], Setting]]:
    for name, table in topics.items():
        if not isinstance(table, dict):
            raise ConfigError(where, f'[topics] {name!r} is no key; write [topics."NAME"] for each topic')
        if not _TOPIC_NAME.fullmatch(name):
            raise ConfigError(
                where,
                f"[topics.{name!r}] is no name of a topic: letters, digits, '.', '_' and '-', at most 249",
            )
        yield from _read_table(("topics", name), TOPIC_KEYS, table, where)


def _read_access(rules: dict[str, Any], where: str) -> Iterator[tuple[tuple[str, ...], Setting]]:
    for pattern, names in _flat(rules):
        if not _PATTERN.fullmatch(pattern):
            raise ConfigError(
                where,
                f"[access] {pattern!r} is no pattern of topics: letters, digits, '.', '_', '-', "
                "'*' for any of them and '?' for one",
            )
        yield ("access", pattern), _check(("access", pattern), ACCESS_KEY, names, where)


def _read_table(
    path: tuple[str, ...], kinds: dict[str, Kind] | None, table: dict[str, Any], where: str
) -> Iterator[tuple[tuple[str, ...], Setting]]:
    """Each setting of one table; without `kinds` every key is librdkafka's to judge."""
    for key, value in _flat(table):
        kind = _kafka_kind(key) if kinds is None else kinds.get(key)
        if kind is None:
            raise ConfigError(
                where, f"{_bracketed(path)} has no key {key!r}{_nearest(key, kinds or (), 'keys')}"
            )
        yield (*path, key), _check((*path, key), kind, value, where)


def _kafka_kind(key: str) -> Kind:
    return _CREDENTIAL_KEY if key.endswith(CREDENTIAL) else _KAFKA_KEY


def _flat(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """The values by dotted name: TOML reads linger.ms, written without quotes, as a table in the table."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _find_variable(name: str, table: str, key: str) -> tuple[tuple[str, ...], Kind]:
    if table in ("access", "topics"):
        raise ConfigError(
            name, "a topic is set in the file only; a variable's name cannot tell its dots and case"
        )
    if table == "input":
        raise ConfigError(name, "an input is set in the file only: [[input]]")
    if table == "kafka":
        dotted = key.replace("_", ".")
        return (table, _UNDERSCORED.get(dotted, dotted)), _kafka_kind(dotted)
    kind = TABLES[table].get(key)
    if kind is None:
        raise ConfigError(name, f"[{table}] has no key {key!r}{_nearest(key, TABLES[table], 'keys')}")
    return (table, key), kind


def _check(path: tuple[str, ...], kind: Kind, value: object, where: str) -> Setting:
    try:
        return Setting(kind.parse(value), where)
    except ValueError:
        # A Kafka property may be a password: of those the value is not shown.
        shown = "" if path[0] == "kafka" else f" = {_shown(value)}"
        raise ConfigError(
            where, f"{_bracketed(path[:-1])} {path[-1]}{shown}: expected {kind.accepts}"
        ) from None


def _shown(value: object) -> str:
    """A value as the file has it, or about, when it is long."""
    try:
        text = json.dumps(value, default=str, ensure_ascii=False)
    except ValueError:
        return "a number of too many digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _bracketed(path: tuple[str, ...]) -> str:
    """A table's name as TOML heads it."""
    if path[0] == "input":
        return f"[[input]] no. {path[1]}:"
    return f'[topics."{path[1]}"]' if len(path) > 1 else f"[{path[0]}]"


def _nearest(name: str, known: Iterable[str], plural: str) -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; the {plural} are {', '.join(known)}"
