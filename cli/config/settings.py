"""Settings by table and key, each with the place it comes from: a file, or an environment variable.

A path such as ("spool", "max_bytes"), ("kafka", "linger.ms") or ("topics", "clicks", "partitioner") names a
setting. As text they are a bruce.toml, with the places that they come from, or JSON; without secrets. Values
are checked one by one here; `cli.config.config` checks those that depend on one another.

The tables that belong to no package are here, too: [ingest] and [log].
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import select
import textwrap
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.config.kinds import (
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
from cli.terminal.errors import ConfigError
from dispatch.options import CREDENTIAL, ENGINES, MODES
from ingest.sockets.inputs import ACK, ACKNOWLEDGE, DATAGRAM, STREAM, TCP, Door, Input
from spool.options import ALWAYS, INTERVAL, MIB

AUTO, TEXT, JSON = "auto", "text", "json"
FORMATS = (AUTO, TEXT, JSON)
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
        "partitioner": Choice(("murmur2", "crc32", "any", "round_robin")),
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
    "witness": {
        "directory": AbsolutePath(),
    },
    "log": {
        "format": Choice(FORMATS),
    },
}
ONE_PLACE = "expected one of datagram, stream, tcp and kafka"
INPUT_KEYS: dict[str, Kind] = {
    "datagram": AbsolutePath(most_bytes=107),
    "stream": AbsolutePath(most_bytes=107),
    "tcp": Whole(1, 65535, "a TCP port"),
    "kafka": Whole(1, 65535, "a TCP port"),
    "mode": Mode(),
    "group": GroupName(),
    "acknowledge": Choice(ACKNOWLEDGE),
    "allow_unknown": Switch(),
}
TOPIC_KEYS: dict[str, Kind] = {
    "partitioner": Partitioner(("any", "round_robin", "partition_key", "murmur2", "crc32")),
    "rate": Whole(1, 1_000_000_000, "messages a second"),
    "rate_excess": Choice(("delay", "discard")),
    "quota": Share(),
    # The properties that librdkafka's producer has per topic.
    **dict.fromkeys(
        ("acks", "request.timeout.ms", "compression.type", "compression.codec", "compression.level"),
        Property(),
    ),
}
_KAFKA_KEY, _CREDENTIAL_KEY = Property(), CredentialName()
ACCESS_KEY = SenderNames()
MOST_BYTES = 1 << 20
PATIENCE_S = 10.0
"""For a pipe to come to its end."""
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
_SECRET = re.compile(r"password|secret|token|private|\.key\.pem|\.key$|credential|oauthbearer\.config|jaas")
HIDDEN = "(hidden)"
_WIDTH = 100
"""Characters of a comment's line."""


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """The places where messages come in. The `[ingest]` table of bruce.toml."""

    datagram_socket: Path
    """The UNIX datagram socket that programs write to. Danger: programs that may write to it write to any
    topic, unless [access] says otherwise."""

    ack_socket: Path | None = None
    """A second one, which tells a program when its message is synced, or delivered; bruce-ack(7) has its
    format. It costs a process, and 15 µs of its time a message (40 where net.unix.max_dgram_qlen is 10): for
    messages that are worth it. Danger: as above."""

    stream_socket: Path | None = None
    """A UNIX stream socket, for programs that have no datagrams, or messages that are too large for one: the
    same messages, back to back. Danger: as above."""

    socket_mode: int = 0o666
    """The mode of the UNIX sockets, as chmod takes it: who may write to them. A socket that systemd opened
    has the mode that it was given there; one of `bruce hold-socket` keeps that of the holder's start."""

    socket_group: str | None = None
    """The group that the UNIX sockets belong to: with mode 0660 its members alone may write.
    bruce must be a member, or root."""

    tcp_port: int | None = None
    """A port of 127.0.0.1 that takes the same as stream_socket. Danger: every user of this host may write to
    it, and [access] cannot tell one from another."""

    inputs: tuple[Input, ...] = ()
    """More places, each a table: `datagram` or `stream`, the path of a UNIX socket, with a `mode` and a
    `group` of its own (those of [ingest], where they are not given); or `tcp`, a port of 127.0.0.1; or
    `kafka`, such a port to which any Kafka client produces as to a broker. Its acks=all is this host's disk;
    with `acknowledge = "delivered"` it is Kafka's, and a client hears a timeout while Kafka is away; not in
    mode "at_most_once", which waits for no answer of Kafka. With
    `allow_unknown` it takes messages for topics that Kafka was not seen to have. Danger: as tcp_port. SIGHUP
    adds and removes inputs, without touching the others."""

    max_stream_message_bytes: int = 2 * MIB
    """Bytes of a message on stream_socket and tcp_port, its size field not counted. A larger one ends the
    connection, and is counted as too_long; one whose rest does not come (no byte for a minute, or after a
    minute less than 16 KiB/s) ends it, too, as too_slow. A message must fit into a segment, and Kafka must
    take it, too."""

    @property
    def stream_address(self) -> str | tuple[str, int] | None:
        """The address of the first stream input: a path, or host and port; None if there is none."""
        places = (
            self.stream_socket,
            self.tcp_port,
            *(one.place for one in self.inputs if one.kind in (STREAM, TCP)),
        )
        place = next((place for place in places if place is not None), None)
        if isinstance(place, int):
            return "127.0.0.1", place
        return None if place is None else str(place)

    def wanted_inputs(self, handed: Sequence[Door]) -> list[Input]:
        """The inputs to open. A datagram or ack socket that was handed over replaces the configured one."""
        mode, group = self.socket_mode, self.socket_group
        given = {door.input.kind for door in handed if door.activated}
        found = [] if DATAGRAM in given else [Input(DATAGRAM, self.datagram_socket, mode, group)]
        if self.stream_socket:
            found.append(Input(STREAM, self.stream_socket, mode, group))
        if self.tcp_port:
            found.append(Input(TCP, self.tcp_port))
        found += self.inputs
        if self.ack_socket and ACK not in given:
            found.append(Input(ACK, self.ack_socket, mode, group))
        return found


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The daemon's log. The `[log]` table of bruce.toml."""

    format: str = AUTO
    """`auto`: to the journal where standard error leads there, as under systemd, with fields of its own; else
    as `text`, a line for people on standard error. `json`: an object a line on standard error, for programs.
    bruce-json(5) has keys and fields. Of one cause at most 20 lines a minute are written, and how many were
    left out is said. No line has a message's key or value."""


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
        if not table:
            raise ConfigError(
                where, f"[[input]] no. {number}: expected one of datagram, stream, tcp and kafka"
            )
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


def read_small(path: Path, patience_s: float = PATIENCE_S) -> bytes:
    """All that is in a file that an operator names, of at most MOST_BYTES.

    The file may be a device that never ends, a log by mistake, or a pipe (`--config <(decrypt FILE)` is one)
    without a writer. Raises OSError, also for a file that is longer, or does not end within `patience_s`.
    """
    until = time.monotonic() + patience_s
    # Without O_NONBLOCK a pipe does not even open before it has a writer.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        data = bytearray()
        while part := _part(fd, until, patience_s):
            data += part
            if len(data) > MOST_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB")
        return bytes(data)
    finally:
        os.close(fd)


def _part(fd: int, until: float, patience_s: float) -> bytes:
    """The next bytes; empty at the end of the file. Raises OSError, with `patience_s`, after `until`."""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if not waiting.poll(max(0.0, until - time.monotonic()) * 1000):
        raise OSError(errno.ETIMEDOUT, f"its end has not come within {patience_s:g} s")
    return os.read(fd, 64 << 10)


def as_toml(settings: Settings) -> str:
    """The settings as a bruce.toml, which begins with the places that they come from."""
    tables: dict[str, dict[str, object]] = {}
    for path, setting in _sorted(settings):
        tables.setdefault(".".join(path[:-1]), {})[path[-1]] = _printed(path, setting)
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
                "value": _printed(path, setting),
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
    """Sorted by name, but rules and inputs in the order of the file."""
    in_order = ("access", "input")
    return sorted(settings.items(), key=lambda pair: pair[0][:1] if pair[0][0] in in_order else pair[0])


def _printed(path: tuple[str, ...], setting: Setting) -> object:
    if is_secret(path):
        return HIDDEN
    if path[-1] == "quota":
        return f"{setting.value:.0%}"
    if path[-1] == "socket_mode" or (path[0] == "input" and path[-1] == "mode"):
        return f"{setting.value:04o}"
    return str(setting.value) if isinstance(setting.value, Path) else setting.value


def write_tables(tables: Mapping[str, Mapping[str, object]]) -> str:
    """The text of a bruce.toml with these tables, in order; JSON's strings, numbers and truths are TOML's.

    `topics.NAME` names the table of a topic, `input.NUMBER` one of several [[input]].
    """
    parts = []
    for name, keys in tables.items():
        table, _, topic = name.partition(".")
        lines = [f"[{table}.{json.dumps(topic)}]" if topic else f"[{table}]"]
        if table == "input":
            lines = ["[[input]]"]
        lines += [f"{_key(key)} = {json.dumps(value)}" for key, value in keys.items()]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def comment(sentences: Iterable[str]) -> str:
    """Sentences as comments, each on lines of its own."""
    lines = (
        textwrap.fill(sentence, _WIDTH, initial_indent="# - ", subsequent_indent="#   ")
        for sentence in sentences
    )
    return "".join(line + "\n" for line in lines)


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() else json.dumps(name)
