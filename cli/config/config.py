"""bruce.toml and the environment, as the options of the packages.

The file is the one named by --config, else by BRUCE_CONFIG, else /etc/bruce/bruce.toml where that exists.
A variable BRUCE_TABLE_KEY gives a key, and overrides the file: BRUCE_SPOOL_DIRECTORY for `[spool] directory`,
BRUCE_KAFKA_BOOTSTRAP_SERVERS for `[kafka] "bootstrap.servers"`. With neither a file nor the addresses of
brokers bruce starts for a first try: with a small spool (`max_bytes` of 64 MiB, `segment_bytes` of 4 MiB),
on an embedded Kafka that forgets everything when it ends. `bootstrap.servers = "embedded"` asks for that
Kafka, too.

Without a file the spool is in a folder of the user's, of root as well: $XDG_STATE_HOME/bruce, by default
~/.local/state/bruce. The socket is $XDG_RUNTIME_DIR/bruce.sock, else /tmp/bruce-UID.sock; root's is
/run/bruce/bruce.sock.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cli.config.kinds import Property
from cli.config.settings import (
    ONE_PLACE,
    TOPIC_KEYS,
    IngestOptions,
    LogOptions,
    Settings,
    read_environment,
    read_file,
    read_small,
)
from cli.terminal.errors import ConfigError
from dispatch.errors import BadProperty
from dispatch.options import CREDENTIAL, SPARK, DispatchOptions, properties
from ingest.sockets.inputs import DATAGRAM, KAFKA, STREAM, TCP, Input
from router.limits import Rate
from spool.format.segment_format import largest_message
from spool.options import MIB, SpoolOptions
from spool.shared.state import MOST_QUOTAS
from status.access import StatusOptions
from status.witness import WitnessOptions

SYSTEM_FILE = Path("/etc/bruce/bruce.toml")
EMBEDDED = "embedded"
"""The `bootstrap.servers` that mean a Kafka of our own, in memory."""

_FIRST_TRY = {"max_bytes": 64 * MIB, "segment_bytes": 4 * MIB}
"""[spool] of a first try: the default's spares alone take 128 MiB."""
_CREDENTIALS = "/run/credentials/bruce.service"
"""The folder in which systemd puts the secrets of bruce.service."""
_SEGMENTS_AT_LEAST = 4
"""One in use, one being sealed, and two spares."""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set."""

    ingest: IngestOptions
    spool: SpoolOptions
    dispatch: DispatchOptions
    status: StatusOptions
    witness: WitnessOptions
    log: LogOptions
    partitioners: Mapping[str, str]
    """By topic, how the partition of a message is chosen. If it is not given, a message with a partition
    key goes by that number (`partition_key`), and others by the `partitioner` of [dispatch]. `any` and
    `round_robin` look at no key. `murmur2` is the choice of Kafka's client for Java, `crc32` that of
    librdkafka, each by the key of the record; `module:function` is a function of your own."""
    rates: Mapping[str, Rate]
    """By topic, how many messages a second may go to Kafka, and a second's worth at once; unlimited where it
    is not given. Messages beyond wait in the spool (`rate_excess = "delay"`, the default), or are
    discarded (`"discard"`), judged by the time of reception, so that a backlog loses nothing.
    Danger: a topic that is sent more than its rate for good fills the spool, or loses the rest."""
    access: Mapping[str, Sequence[str]]
    """By pattern of topics (`*` matches any characters, `?` one), in order, who may write to them: the
    first pattern that fits a topic decides, and a topic that none fits is everybody's. `user:NAME` and
    `uid:NUMBER` name who runs a program; `group:NAME` and `gid:NUMBER` those whose program runs in the group,
    and the group's members as the host knows them when the rules are read; what other groups a program was
    given (SupplementaryGroups=) counts for nothing, as no datagram tells them. `tcp` means all users
    of tcp_port, `everybody` all senders. Messages that are refused are counted as not_permitted, by sender.
    bruce's own user may write to every topic."""
    file: Path | None
    """The file that was read."""
    first_try: bool
    """No brokers are configured: an embedded Kafka takes their place, and forgets everything at its end."""


def load_config(
    named: Path | None = None, *, environ: Mapping[str, str] = os.environ, uid: int | None = None
) -> Config:
    """The configuration in effect. Raises ConfigError, whose text is one line."""
    file = find_file(named, environ)
    settings = given_settings(named, environ=environ)
    place = str(file or "bruce.toml")
    kafka = _kafka_properties(settings, environ)
    first_try = _is_first_try(file, kafka)
    if first_try:
        kafka["bootstrap.servers"] = EMBEDDED
    directory, datagram_socket = default_paths(file, environ, os.getuid() if uid is None else uid)
    spool = _spool_options(directory, settings, place, first_try=first_try)
    return Config(
        ingest=_ingest_options(datagram_socket, spool, settings, place),
        spool=spool,
        dispatch=_dispatch_options(kafka, settings, place),
        status=_status_options(settings, place),
        witness=WitnessOptions(**_values(settings, "witness")),
        log=LogOptions(**_values(settings, "log")),
        partitioners={path[1]: s.value for path, s in settings.items() if path[2:] == ("partitioner",)},
        rates=_rates(settings),
        access=_values(settings, "access"),
        file=file,
        first_try=first_try,
    )


def load_ingest(named: Path | None = None, *, environ: Mapping[str, str] = os.environ) -> IngestOptions:
    """The [ingest] table, without the secrets that [kafka] may name. Raises ConfigError."""
    file, settings = find_file(named, environ), given_settings(named, environ=environ)
    place, first_try = str(file or "bruce.toml"), _is_first_try(file, _values(settings, "kafka"))
    directory, datagram_socket = default_paths(file, environ, os.getuid())
    spool = _spool_options(directory, settings, place, first_try=first_try)
    return _ingest_options(datagram_socket, spool, settings, place)


def _is_first_try(file: Path | None, kafka: Mapping[str, str]) -> bool:
    return not file and not ({"bootstrap.servers", "metadata.broker.list"} & kafka.keys())


def config_for(named: Path | None, spool: Path | None, kafka: Path | None = None) -> Config:
    """The configuration with another spool, and with the cluster that the [kafka] table of `kafka` names.

    Raises ConfigError.
    """
    config = load_config(named)
    if spool is not None:
        config = replace(config, spool=replace(config.spool, directory=spool.absolute()))
    if kafka is None:
        return config
    settings = read_file(kafka)
    table = _kafka_properties(settings, os.environ)
    if not {"bootstrap.servers", "metadata.broker.list"} & table.keys():
        raise ConfigError(str(kafka), 'names no brokers: expected [kafka] with "bootstrap.servers"')
    return replace(config, dispatch=replace(config.dispatch, kafka=table), first_try=False)


def given_settings(named: Path | None = None, *, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of the file, and of the variables that override it. Raises ConfigError."""
    file = find_file(named, environ)
    return {**(read_file(file) if file else {}), **read_environment(environ)}


def find_file(named: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read. One that was named is read even when it is not there: its absence is an error."""
    if named:
        return named
    if environ.get("BRUCE_CONFIG"):
        return Path(environ["BRUCE_CONFIG"])
    return SYSTEM_FILE if SYSTEM_FILE.exists() else None


def default_paths(file: Path | None, environ: Mapping[str, str], uid: int) -> tuple[Path, Path]:
    """(spool directory, datagram socket): of root with a file, of a service, else the user's own."""
    system = Path("/var/lib/bruce"), Path("/run/bruce/bruce.sock")
    if uid == 0 and file:
        return system
    if "STATE_DIRECTORY" in environ and "RUNTIME_DIRECTORY" in environ:  # as systemd has made them
        return Path(environ["STATE_DIRECTORY"]), Path(environ["RUNTIME_DIRECTORY"], "bruce.sock")
    state = Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local/state", "bruce")
    if uid == 0:
        return state, system[1]
    runtime = environ.get("XDG_RUNTIME_DIR")
    return state, Path(runtime, "bruce.sock") if runtime else Path(f"/tmp/bruce-{uid}.sock")


def _values(settings: Settings, table: str) -> dict[str, Any]:
    return {path[1]: setting.value for path, setting in settings.items() if path[0] == table}


def _kafka_properties(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The [kafka] table with its secrets. Raises ConfigError."""
    given = _values(settings, "kafka")
    for key in given:
        if key.endswith(CREDENTIAL) and (value := key.removesuffix(CREDENTIAL)) in given:
            raise ConfigError(
                settings["kafka", key].where, f"[kafka] has both {value} and {key}: give one of them"
            )
    return _resolve(given, environ)


def _resolve(kafka: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The [kafka] properties, with the secrets that the service manager hands over (systemd's credentials).

    `"sasl.password.credential" = "kafka-password"` means: the property `sasl.password` has as its value the
    text of the file kafka-password in $CREDENTIALS_DIRECTORY. If that variable is missing, as for
    `brucectl` beside the daemon, the directory is that of bruce.service, for users who may read it. A
    secret that cannot be read stays unresolved: many commands do not need it.
    """
    directory = Path(environ.get("CREDENTIALS_DIRECTORY", _CREDENTIALS))
    resolved = {}
    for key, value in kafka.items():
        secret = _read_secret(directory / value) if key.endswith(CREDENTIAL) else None
        if secret is None:
            resolved[key] = value
        else:
            resolved[key.removesuffix(CREDENTIAL)] = secret
    return resolved


def _read_secret(path: Path) -> str | None:
    """The text of a file, without the newline at its end; None when it cannot be read."""
    try:
        return read_small(path).decode("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError):
        return None


def _where(settings: Settings, place: str, *paths: tuple[str, ...]) -> str:
    """The file or variable that gives the first of these settings; else `place`."""
    return next((settings[path].where for path in paths if path in settings), place)


def _ingest_options(
    datagram_socket: Path, spool: SpoolOptions, settings: Settings, place: str
) -> IngestOptions:
    options = IngestOptions(**{"datagram_socket": datagram_socket, **_values(settings, "ingest")})
    options = replace(options, inputs=_read_inputs(settings, options.socket_mode, options.socket_group))
    _check_inputs(options, settings)
    most, size = largest_message(spool.segment_bytes), options.max_stream_message_bytes
    streams = options.stream_socket or options.tcp_port or any(one.kind != DATAGRAM for one in options.inputs)
    if streams and size > most:
        raise ConfigError(
            _where(settings, place, ("ingest", "max_stream_message_bytes"), ("spool", "segment_bytes")),
            f"[ingest] max_stream_message_bytes = {size}: expected at most {most}, which a segment of "
            f"{spool.segment_bytes} bytes has room for",
        )
    return options


def _read_inputs(settings: Settings, mode: int, group: str | None) -> tuple[Input, ...]:
    """One for each table, with this mode and group where it has none of its own. Raises ConfigError."""
    tables: dict[str, dict[str, Any]] = {}
    places: dict[str, str] = {}
    for path, setting in settings.items():
        if path[0] == "input":
            tables.setdefault(path[1], {})[path[2]] = setting.value
            places[path[1]] = setting.where
    return tuple(_input(number, table, places[number], mode, group) for number, table in tables.items())


def _input(number: str, table: dict[str, Any], where: str, mode: int, group: str | None) -> Input:
    kinds = [kind for kind in (DATAGRAM, STREAM, TCP, KAFKA) if kind in table]
    if len(kinds) != 1:
        raise ConfigError(where, f"[[input]] no. {number}: {ONE_PLACE}")
    (kind,) = kinds
    by_port, others = kind in (TCP, KAFKA), {key: value for key, value in table.items() if key != kind}
    if by_port and not others.keys().isdisjoint(("mode", "group")):
        raise ConfigError(where, f"[[input]] no. {number}: a TCP port has neither mode nor group")
    if kind != KAFKA and not others.keys().isdisjoint(("acknowledge", "allow_unknown")):
        raise ConfigError(where, f"[[input]] no. {number}: acknowledge and allow_unknown are of kafka inputs")
    return Input(kind, table[kind], **others if by_port else {"mode": mode, "group": group, **others})


def _check_inputs(options: IngestOptions, settings: Settings) -> None:
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


def _spool_options(directory: Path, settings: Settings, place: str, *, first_try: bool) -> SpoolOptions:
    quotas = {path[1].encode(): s.value for path, s in settings.items() if path[2:] == ("quota",)}
    small = _FIRST_TRY if first_try else {}
    options = SpoolOptions(
        **{"directory": directory, "quotas": quotas, **small, **_values(settings, "spool")}
    )
    if len(quotas) > MOST_QUOTAS:
        raise ConfigError(place, f"{len(quotas)} topics have a quota: expected at most {MOST_QUOTAS}")
    check_room(options, _where(settings, place, ("spool", "max_bytes"), ("spool", "segment_bytes")))
    return options


def check_room(options: SpoolOptions, where: str) -> None:
    """Whether the segments that a spool needs fit into it. Raises ConfigError."""
    least = _SEGMENTS_AT_LEAST * options.segment_bytes
    if options.max_bytes < least:
        raise ConfigError(
            where,
            f"[spool] max_bytes = {options.max_bytes}: expected at least {least}, "
            f"which is {_SEGMENTS_AT_LEAST} times segment_bytes",
        )


def _status_options(settings: Settings, place: str) -> StatusOptions:
    options = StatusOptions(**_values(settings, "status"))
    if not options.is_local and not options.token_file:
        raise ConfigError(
            _where(settings, place, ("status", "address")),
            f'[status] address = "{options.address}": other hosts may look only with a token; name a file '
            "with one in [status] token_file",
        )
    if options.tls_key and not options.tls_certificate:
        raise ConfigError(
            _where(settings, place, ("status", "tls_key")),
            "[status] tls_key belongs to a certificate: name that in [status] tls_certificate",
        )
    return options


def _rates(settings: Settings) -> dict[str, Rate]:
    rates = {}
    for path, setting in settings.items():
        if path[0] == "topics" and path[2] == "rate":
            excess = settings.get((*path[:2], "rate_excess"))
            rates[path[1]] = Rate(setting.value, discard=excess is not None and excess.value == "discard")
        elif path[0] == "topics" and path[2] == "rate_excess" and (*path[:2], "rate") not in settings:
            raise ConfigError(
                setting.where,
                f'[topics."{path[1]}"] rate_excess says what to do beyond a rate: give a rate too',
            )
    return rates


def _dispatch_options(kafka: dict[str, str], settings: Settings, place: str) -> DispatchOptions:
    topics: dict[str, dict[str, str]] = {}
    for path, setting in settings.items():
        if path[0] == "topics" and isinstance(TOPIC_KEYS[path[2]], Property):
            topics.setdefault(path[1], {})[path[2]] = setting.value
    options = DispatchOptions(kafka=kafka, topics=topics, **_values(settings, "dispatch"))
    try:
        properties(options)
    except BadProperty as error:
        raise ConfigError(_where(settings, place, ("kafka", error.key)), str(error)) from None
    if options.engine == SPARK and kafka.get("bootstrap.servers") == EMBEDDED:
        raise ConfigError(
            _where(settings, place, ("dispatch", "engine")),
            '[dispatch] engine = "spark": jobs cannot reach the embedded Kafka; name brokers in [kafka] '
            '"bootstrap.servers"',
        )
    return options
