"""bruce.toml and the environment, as the options of the packages.

The file is the one named by --config, else by BRUCE_CONFIG, else /etc/bruce/bruce.toml where that exists.
A variable BRUCE_TABLE_KEY gives a key, and overrides the file: BRUCE_SPOOL_DIRECTORY for `[spool] directory`,
BRUCE_KAFKA_BOOTSTRAP_SERVERS for `[kafka] "bootstrap.servers"`. With neither a file nor the addresses of
brokers bruce starts for a first try, on an embedded Kafka that forgets everything when it ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cli.credentials import resolve
from cli.errors import ConfigError
from cli.inputs import check_inputs, read_inputs
from cli.kinds import Property
from cli.log_options import LogOptions
from cli.settings import TOPIC_KEYS, Settings, read_environment, read_file
from dispatch.errors import BadProperty
from dispatch.options import CREDENTIAL, SPARK, DispatchOptions, properties
from ingest.inputs import DATAGRAM, Input
from router.limits import Rate
from spool.format import largest_message
from spool.options import MIB, SpoolOptions
from spool.page import MOST_QUOTAS
from status.options import StatusOptions

SYSTEM_FILE = Path("/etc/bruce/bruce.toml")
EMBEDDED = "embedded"
"""The `bootstrap.servers` that stand for a Kafka of our own, in memory."""

_SEGMENTS_AT_LEAST = 4
"""One in use, one being sealed, and two spares."""


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """Where messages come in. The `[ingest]` table of bruce.toml."""

    datagram_socket: Path
    """The UNIX datagram socket that programs write to. Danger: who may write to it writes to any topic, as
    far as [access] does not say otherwise."""

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
    """The group that the UNIX sockets belong to: with mode 0660 its members may write, and nobody else.
    bruce must be a member, or root."""

    tcp_port: int | None = None
    """A port of 127.0.0.1 that takes the same as stream_socket. Danger: every user of this host may write to
    it, and nobody is told from another."""

    inputs: tuple[Input, ...] = ()
    """More places, each a table: `datagram` or `stream`, the path of a UNIX socket, with a `mode` and a
    `group` of its own (those of [ingest], where they are not given); or `tcp`, a port of 127.0.0.1. SIGHUP
    adds and removes them, without touching the others."""

    max_stream_message_bytes: int = 2 * MIB
    """Bytes of a message on stream_socket and tcp_port, its size field not counted. A larger one ends the
    connection, and is counted as too_long; one whose rest does not come (no byte for a minute, or after a
    minute less than 16 KiB/s) ends it, too, as too_slow. A message must fit into a segment, and Kafka must
    take it, too."""

    @property
    def stream_address(self) -> str | tuple[str, int] | None:
        """Where a stream can go: a path, or host and port; None for nowhere."""
        places = (
            self.stream_socket,
            self.tcp_port,
            *(one.place for one in self.inputs if one.kind != DATAGRAM),
        )
        place = next((place for place in places if place is not None), None)
        if isinstance(place, int):
            return "127.0.0.1", place
        return None if place is None else str(place)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set."""

    ingest: IngestOptions
    spool: SpoolOptions
    dispatch: DispatchOptions
    status: StatusOptions
    log: LogOptions
    partitioners: Mapping[str, str]
    """By topic, how the partition of a message is chosen. Where it is not given, a message with a partition
    key goes by that number (`partition_key`), and others in runs to any partition that is there (`any`).
    `murmur2` is the choice of Java's client, `crc32` that of librdkafka, each by the key of the record;
    `module:function` is a function of your own."""
    rates: Mapping[str, Rate]
    """By topic, how many messages a second may go to Kafka, and a second's worth at once; unlimited where it
    is not given. What is beyond waits in the spool (`rate_excess = "delay"`, the default), or is discarded
    (`"discard"`); what is discarded is judged by when it was received, so that a backlog loses nothing.
    Danger: a topic that is sent more than its rate for good fills the spool, or loses the rest."""
    access: Mapping[str, Sequence[str]]
    """By pattern of topics (`*` stands for any characters, `?` for one), in order, who may write to them: the
    first pattern that fits a topic decides, and a topic that none fits is everybody's. `user:NAME` and
    `uid:NUMBER` name who runs a program; `group:NAME` and `gid:NUMBER` those whose program runs in the group,
    and the group's members as the host knows them when the rules are read; what other groups a program was
    given (SupplementaryGroups=) counts for nothing, as no datagram tells them. `tcp` stands for whoever comes
    to tcp_port, `everybody` for all. What is refused is counted as not_permitted, by its sender. bruce's own
    user may write to every topic."""
    file: Path | None
    """The file that was read."""
    first_try: bool
    """Nobody said where Kafka is: an embedded one stands in, and forgets everything when it ends."""


def load_config(
    named: Path | None = None, *, environ: Mapping[str, str] = os.environ, uid: int | None = None
) -> Config:
    """The configuration in effect. Raises ConfigError, whose text is one line."""
    file = find_file(named, environ)
    settings = given_settings(named, environ=environ)
    place = str(file or "bruce.toml")
    kafka = _kafka_properties(settings, environ)
    first_try = not file and not ({"bootstrap.servers", "metadata.broker.list"} & kafka.keys())
    if first_try:
        kafka["bootstrap.servers"] = EMBEDDED
    directory, datagram_socket = default_paths(environ, os.getuid() if uid is None else uid)
    spool = _spool_options(directory, settings, place)
    return Config(
        ingest=_ingest_options(datagram_socket, spool, settings, place),
        spool=spool,
        dispatch=_dispatch_options(kafka, settings, place),
        status=_status_options(settings, place),
        log=LogOptions(**_values(settings, "log")),
        partitioners={path[1]: s.value for path, s in settings.items() if path[2:] == ("partitioner",)},
        rates=_rates(settings),
        access=_values(settings, "access"),
        file=file,
        first_try=first_try,
    )


def load_ingest(named: Path | None = None, *, environ: Mapping[str, str] = os.environ) -> IngestOptions:
    """Where messages come in, without the secrets that [kafka] may name. Raises ConfigError."""
    settings, place = given_settings(named, environ=environ), str(find_file(named, environ) or "bruce.toml")
    directory, datagram_socket = default_paths(environ, os.getuid())
    return _ingest_options(datagram_socket, _spool_options(directory, settings, place), settings, place)


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
    """What is set, and where: the file, and the variables that override it. Raises ConfigError."""
    file = find_file(named, environ)
    return {**(read_file(file) if file else {}), **read_environment(environ)}


def find_file(named: Path | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read. One that was named is read even when it is not there: its absence is an error."""
    if named:
        return named
    if environ.get("BRUCE_CONFIG"):
        return Path(environ["BRUCE_CONFIG"])
    return SYSTEM_FILE if SYSTEM_FILE.exists() else None


def default_paths(environ: Mapping[str, str], uid: int) -> tuple[Path, Path]:
    """(spool directory, datagram socket): the system's for root and for a service, for others their own."""
    if uid == 0:
        return Path("/var/lib/bruce"), Path("/run/bruce/bruce.sock")
    if "STATE_DIRECTORY" in environ and "RUNTIME_DIRECTORY" in environ:  # as systemd has made them
        return Path(environ["STATE_DIRECTORY"]), Path(environ["RUNTIME_DIRECTORY"], "bruce.sock")
    state = environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    runtime = environ.get("XDG_RUNTIME_DIR")
    return Path(state) / "bruce", Path(runtime, "bruce.sock") if runtime else Path(f"/tmp/bruce-{uid}.sock")


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
    return resolve(given, environ)


def _where(settings: Settings, place: str, *paths: tuple[str, ...]) -> str:
    """Where the first of these settings that was given comes from."""
    return next((settings[path].where for path in paths if path in settings), place)


def _ingest_options(
    datagram_socket: Path, spool: SpoolOptions, settings: Settings, place: str
) -> IngestOptions:
    options = IngestOptions(**{"datagram_socket": datagram_socket, **_values(settings, "ingest")})
    options = replace(options, inputs=read_inputs(settings, options.socket_mode, options.socket_group))
    check_inputs(options, settings)
    most, size = largest_message(spool.segment_bytes), options.max_stream_message_bytes
    streams = options.stream_socket or options.tcp_port or any(one.kind != DATAGRAM for one in options.inputs)
    if streams and size > most:
        raise ConfigError(
            _where(settings, place, ("ingest", "max_stream_message_bytes"), ("spool", "segment_bytes")),
            f"[ingest] max_stream_message_bytes = {size}: expected at most {most}, which a segment of "
            f"{spool.segment_bytes} bytes has room for",
        )
    return options


def _spool_options(directory: Path, settings: Settings, place: str) -> SpoolOptions:
    quotas = {path[1].encode(): s.value for path, s in settings.items() if path[2:] == ("quota",)}
    options = SpoolOptions(**{"directory": directory, "quotas": quotas, **_values(settings, "spool")})
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
