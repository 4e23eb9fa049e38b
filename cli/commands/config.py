"""`brucectl config`: bruce.toml looked at, and made from those of Bruce and Dory.

The XML configuration of Bruce 1.0 or Dory 3.2 becomes a bruce.toml, with a note for what has no counterpart.

    <bruceConfig> / <doryConfig>      settings are attributes; k is 1024, m is 1024 squared

A setting that means the same is taken over; one that bruce decides otherwise gets a note that says how. An
element that neither program knows is an error, as it was to them. Both sent a message without a partition
key to any partition, whatever its key: so does the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated
from xml.etree.ElementTree import Element, ParseError, fromstring

import typer

from cli.commands.arguments import AsJson, ConfigFile, examples
from cli.config.settings import read_small
from cli.terminal.errors import ConfigError

VERSION = 1
CHECK_EXAMPLES = examples("brucectl config check", "brucectl config check --config new.toml")
SHOW_EXAMPLES = examples("brucectl config show", "brucectl config show --json | jq .settings")
CONVERT_EXAMPLES = examples(
    "brucectl config convert /etc/dory/dory.xml > bruce.toml", "brucectl config convert bruce_conf.xml --json"
)

Source = Annotated[Path, typer.Argument(metavar="FILE", help="An XML file of Bruce 1.0 or Dory 3.2.")]
_ROOTS = ("bruceConfig", "doryConfig")
_BROKER_PORT = "9092"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_UNLIMITED = "unlimited"
_DISABLED = "disable"
_HIDDEN_FLAGS = (
    "settings that Bruce took as flags are in no file: --receive_socket_name is [ingest] datagram_socket, "
    '--client_id is [kafka] "client.id", --discard_log_path is [dispatch] discard_file'
)
_NOTES = {
    "inputConfig/maxBuffer": "memory has no limit to set: messages are on disk, see [spool] max_bytes",
    "inputConfig/maxDatagramMsgSize": "a datagram has at most 64 KiB; larger messages come by stream",
    "inputConfig/allowLargeUnixDatagrams": "a datagram has at most 64 KiB; larger messages come by stream",
    "httpInterface/discardReportInterval": "/discards has a report of ten minutes, and the one before it",
    "httpInterface/badMsgPrefixSize": "of a discarded message the first 256 bytes are kept",
    "msgDebug": "`brucectl trace --topic NAME` shows single messages, for a limited time",
    "logging": "bruce logs to standard error or the journal, see [log]",
    "batching/produceRequestDataLimit": "librdkafka makes requests as large as its batches",
    "batching/topicConfigs": "a topic has no batches of its own: librdkafka fills them by partition",
    "compression/sizeThresholdPercent": "librdkafka sends a batch uncompressed when it does not shrink",
    "msgDelivery/topicAutocreate": "topics are made by the brokers (auto.create.topics.enable), or by hand",
    "msgDelivery/maxFailedDeliveryAttempts": "messages wait in the spool until Kafka takes them",
    "msgDelivery/dispatcherRestartMaxDelay": "nothing is restarted when metadata change",
    "msgDelivery/compareMetadataOnRefresh": "nothing is restarted when metadata change",
    "msgDelivery/pauseRateLimitInitial": "a broker that fails is left alone, and the others go on",
    "msgDelivery/pauseRateLimitMaxDouble": "a broker that fails is left alone, and the others go on",
    "msgDelivery/minPauseDelay": "a broker that fails is left alone, and the others go on",
}
"""Elements, by their path, that have no counterpart in bruce.toml."""
_GROUPS = (
    "batching",
    "compression",
    "topicRateLimiting",
    "inputSources",
    "inputConfig",
    "msgDelivery",
    "httpInterface",
    "kafkaConfig",
)
"""Elements that only hold others."""
_BATCHES = {"time": "linger.ms", "messages": "batch.num.messages", "bytes": "batch.size"}
_LEAST_DISCARD_FILE = 64 << 10


def check(*, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Say whether the daemon would start with this configuration.

    Variables of the environment (BRUCE_TABLE_KEY) count, too. librdkafka judges its own properties. A
    wrong key or value is one sentence with file, table and key, and exit code 2. "acks" below all in
    at_least_once is a warning.
    With --json one document of version 1: file (null: none was read), first_try.
    """
    from cli.config.config import load_config
    from cli.config.trial import ACKS_REMEDY, try_parts, weak_acks
    from cli.terminal.output import complain, say, show_json

    settings = load_config(config)
    try_parts(settings)
    for weaker in weak_acks(settings.dispatch):
        complain(f"{weaker}; {ACKS_REMEDY}")
    if as_json:
        file = None if settings.file is None else str(settings.file)
        show_json({"version": VERSION, "file": file, "first_try": settings.first_try})
    elif settings.first_try:
        say("fine, for a first try: nothing says where Kafka is, and an embedded one forgets at its end")
    else:
        say(f"fine: {settings.file or 'the environment'}")


def show(*, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Print what is set, and where: in a file, or by a variable of the environment. Secrets are not shown.

    As a bruce.toml; what is not in it has its default, see bruce.toml(5). With --json one document of
    version 1: file, settings: table, key, value, where. Exit code 2 where `config check` has it.
    """
    from cli.config.config import given_settings, load_config
    from cli.config.settings import as_document, as_toml
    from cli.terminal.output import say, show_json

    file, settings = load_config(config).file, given_settings(config)
    if as_json:
        show_json({"version": VERSION, "file": None if file is None else str(file), **as_document(settings)})
    else:
        say(as_toml(settings))


def convert(source: Source, *, as_json: AsJson = False) -> None:
    """Print the bruce.toml that does what a file of Bruce or Dory did, with a note for what it cannot say.

    Notes are comments at its beginning. With --json one document of version 1: tables, notes.
    """
    from cli.commands.config import Conversion
    from cli.config.settings import comment, write_tables
    from cli.terminal.output import say, show_json

    made = Conversion(source)
    if as_json:
        show_json({"version": VERSION, "tables": made.tables, "notes": made.notes})
        return
    say(f"# Made from {source}. Bruce does otherwise, or cannot do:\n#\n{comment(made.notes)}")
    say(write_tables(made.tables))


class Conversion:
    """One file. `tables` and `notes` are complete once it is made."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self._where, self._root = str(path), _read(path)
        self.tables: dict[str, dict[str, object]] = {}
        """By table of bruce.toml, `topics.NAME` included."""
        self.notes: list[str] = [_HIDDEN_FLAGS] if self._root.tag == _ROOTS[0] else []
        """A sentence for each setting that has no counterpart, or not quite."""
        self._put("dispatch", "partitioner", "any")
        for element in self._root:
            self._take(element, element.tag)
        if "bootstrap.servers" not in self.tables.get("kafka", {}):
            raise ConfigError(self._where, "names no broker in <initialBrokers>")

    def _take(self, element: Element, path: str) -> None:
        """Convert an element, or what is in it."""
        if (taker := _TAKERS.get(path)) is not None:
            taker(self, element)
        elif path in _NOTES:
            self._note(path, _NOTES[path])
        elif path in _GROUPS:
            for child in element:
                self._take(child, f"{path}/{child.tag}")
        elif not path.endswith("/namedConfigs"):
            raise ConfigError(self._where, f"neither Bruce nor Dory knows an element <{path}>")

    def _note(self, path: str, sentence: str) -> None:
        self.notes.append(f"<{path}>: {sentence}")

    def _put(self, table: str, key: str, value: object) -> None:
        self.tables.setdefault(table, {})[key] = value

    def _text(self, element: Element, attribute: str) -> str:
        if attribute not in element.attrib:
            raise ConfigError(self._where, f"<{element.tag}> has no attribute {attribute}")
        return element.attrib[attribute]

    def _number(self, element: Element, attribute: str = "value") -> int:
        text = self._text(element, attribute)
        found = re.fullmatch(r"([0-9]{1,15})([km]?)", text)
        if not found:
            raise ConfigError(
                self._where, f'<{element.tag} {attribute}="{text}">: expected a number, as 64 or 64k'
            )
        return int(found[1]) * _UNITS[found[2]]

    def _config(self, section: str, name: str) -> Element:
        """The configuration of this name in a section."""
        for config in self._root.iterfind(f"{section}/namedConfigs/config"):
            if config.get("name") == name:
                return config
        raise ConfigError(self._where, f"<{section}> has no configuration named {name!r}")

    def brokers(self, element: Element) -> None:
        """Convert the addresses of the brokers."""
        hosts = [f"{self._text(one, 'host')}:{one.get('port', _BROKER_PORT)}" for one in element]
        if hosts:
            self._put("kafka", "bootstrap.servers", ",".join(hosts))
        if any("port" not in one.attrib for one in element):
            self._note(
                "initialBrokers", f"a broker has no port: {_BROKER_PORT} is taken, where Dory took 9002"
            )

    def batches(self, element: Element) -> None:
        """Those of most topics."""
        if element.get("enable") == "false" or not element.get("config"):
            return
        config = self._config("batching", self._text(element, "config"))
        for tag, key in _BATCHES.items():
            child = config.find(tag)
            if child is not None and child.get("value") != _DISABLED:
                self._put("kafka", key, str(self._number(child)))
        self._note(
            "batching/combinedTopics",
            "librdkafka fills batches by partition, for linger.ms at most; bruce's own is 20",
        )

    def default_topic_batches(self, element: Element) -> None:
        """How topics that nothing else is said of are batched."""
        if element.get("action") == "perTopic":
            self.batches(element)

    def compression(self, element: Element, table: str = "kafka") -> None:
        """Of all topics, or of one."""
        config = self._config("compression", self._text(element, "config"))
        self._put(table, "compression.type", self._text(config, "type"))
        if config.get("level", "-1") != "-1":
            self._put(table, "compression.level", str(self._number(config, "level")))
        if config.get("minSize", "0") != "0":
            self._note(
                f"compression, {self._text(config, 'name')}",
                "librdkafka compresses every batch, however small",
            )

    def topic_compression(self, element: Element) -> None:
        """Of single topics."""
        for topic in element:
            self.compression(topic, f"topics.{self._text(topic, 'name')}")

    def default_rate(self, element: Element) -> None:
        """That of topics that nothing else is said of: there is none."""
        if self._config("topicRateLimiting", self._text(element, "config")).get("maxCount") != _UNLIMITED:
            self._note(
                "topicRateLimiting/defaultTopic",
                'there is no rate for all topics: give each its own, [topics."NAME"] rate',
            )

    def topic_rates(self, element: Element) -> None:
        """Of single topics."""
        for topic in element:
            name = self._text(topic, "name")
            config = self._config("topicRateLimiting", self._text(topic, "config"))
            if config.get("maxCount") == _UNLIMITED:
                continue
            rate = self._number(config, "maxCount") * 1000 // max(self._number(config, "interval"), 1)
            if not rate:
                self._note(
                    f"topicRateLimiting, {name}", "less than one message a second cannot be set: it is 1"
                )
            self._put(f"topics.{name}", "rate", max(rate, 1))
            self._put(f"topics.{name}", "rate_excess", "discard")

    def socket(self, element: Element, key: str) -> None:
        """One that programs write to."""
        path, mode = element.find("path"), element.find("mode")
        if element.get("enable") == "false" or path is None:
            return
        self._put("ingest", key, self._text(path, "value"))
        if mode is not None:
            self._take_mode(key, f"inputSources/{element.tag}/mode", self._text(mode, "value"))

    def _take_mode(self, key: str, path: str, mode: str) -> None:
        """The first socket's mode goes to [ingest]; a second socket with another mode is an [[input]]."""
        if not re.fullmatch("0?[0-7]{3}", mode):
            self._note(path, "the sockets are open to everybody; see [ingest] socket_mode")
        elif self.tables["ingest"].setdefault("socket_mode", mode) != mode:
            kind = key.partition("_")[0]
            self.tables["input.1"] = {kind: self.tables["ingest"].pop(key), "mode": mode}

    def tcp(self, element: Element) -> None:
        """The port for programs without UNIX sockets."""
        port = element.find("port")
        if element.get("enable") != "false" and port is not None:
            self._put("ingest", "tcp_port", self._number(port))

    def loopback(self, element: Element) -> None:
        """Convert the access to the status page."""
        if self._text(element, "value") != "true":
            self._note(
                "httpInterface/loopbackOnly",
                "other hosts see the status page by [status] address, which wants a token_file",
            )

    def largest_message(self, element: Element) -> None:
        """On streams."""
        self._put("ingest", "max_stream_message_bytes", self._number(element))

    def discard_log(self, element: Element) -> None:
        """Convert the file that keeps discarded messages."""
        path, size = element.find("path"), element.find("maxFileSize")
        if element.get("enable") == "false" or path is None:
            return
        self._put("dispatch", "discard_file", self._text(path, "value"))
        if size is not None:
            self._put("dispatch", "discard_file_bytes", max(self._number(size), _LEAST_DISCARD_FILE))
        self._note(
            "discardLogging",
            "messages are kept whole, in a format that `brucectl replay --discards` sends again",
        )

    def number(self, element: Element, table: str, key: str, scale: Callable[[int], int]) -> None:
        """One that has another unit; in [kafka] it is text."""
        value = scale(self._number(element))
        self._put(table, key, str(value) if table == "kafka" else value)

    def text(self, element: Element, table: str, key: str) -> None:
        """One that is taken over as it is."""
        self._put(table, key, self._text(element, "value"))


def _read(path: Path) -> Element:
    try:
        root = fromstring(read_small(path))  # noqa: S314  (the operator's own file; expat bounds what entities make)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from None
    except (ParseError, ValueError, LookupError) as error:
        raise ConfigError(str(path), f"is not XML: {error}") from None
    if root.tag not in _ROOTS:
        raise ConfigError(
            str(path),
            f"is of neither Bruce nor Dory: expected <{_ROOTS[0]}> or <{_ROOTS[1]}> at its beginning",
        )
    return root


def _number_to(
    table: str, key: str, scale: Callable[[int], int] = int
) -> Callable[[Conversion, Element], None]:
    return lambda conversion, element: conversion.number(element, table, key, scale)


_TAKERS: dict[str, Callable[[Conversion, Element], None]] = {
    "initialBrokers": Conversion.brokers,
    "batching/combinedTopics": Conversion.batches,
    "batching/defaultTopic": Conversion.default_topic_batches,
    "batching/messageMaxBytes": _number_to("kafka", "message.max.bytes"),
    "compression/defaultTopic": Conversion.compression,
    "compression/topicConfigs": Conversion.topic_compression,
    "topicRateLimiting/defaultTopic": Conversion.default_rate,
    "topicRateLimiting/topicConfigs": Conversion.topic_rates,
    "inputSources/unixDatagram": lambda conversion, element: conversion.socket(element, "datagram_socket"),
    "inputSources/unixStream": lambda conversion, element: conversion.socket(element, "stream_socket"),
    "inputSources/tcp": Conversion.tcp,
    "inputConfig/maxStreamMsgSize": Conversion.largest_message,
    "msgDelivery/shutdownMaxDelay": _number_to("dispatch", "drain_seconds", lambda ms: -(-ms // 1000)),
    "msgDelivery/metadataRefreshInterval": _number_to(
        "kafka", "topic.metadata.refresh.interval.ms", lambda minutes: 60_000 * minutes
    ),
    "msgDelivery/kafkaSocketTimeout": _number_to(
        "kafka", "socket.timeout.ms", lambda seconds: 1000 * seconds
    ),
    "httpInterface/port": _number_to("status", "port"),
    "httpInterface/loopbackOnly": Conversion.loopback,
    "discardLogging": Conversion.discard_log,
    "kafkaConfig/clientId": lambda conversion, element: conversion.text(element, "kafka", "client.id"),
    "kafkaConfig/replicationTimeout": _number_to("kafka", "request.timeout.ms"),
}
"""By path, what has a counterpart."""
