"""The options of delivery, and the librdkafka properties that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dispatch.errors import BadProperty

_DEFAULTS = {
    "client.id": "bruce",
    "acks": "all",
    "enable.idempotence": "true",
    # Batching pays for most of the broker's work: 20 ms halves it against 5 ms. Behind the last message that
    # there is, the router hurries, unless the configuration says how long to linger.
    "linger.ms": "20",
    # Both stand above any sensible sum of windows, so that the windows decide and not this queue.
    "queue.buffering.max.messages": "2000000",
    "queue.buffering.max.kbytes": "2097151",
    # Broker states and round-trip times for status; also how a broker that is down is noticed early.
    "statistics.interval.ms": "1000",
    "topic.metadata.refresh.interval.ms": "60000",
    # A topic that the cluster does not know fails after this; the router's grace time begins then.
    "topic.metadata.propagation.max.ms": "5000",
    "reconnect.backoff.max.ms": "2000",
    # librdkafka asks the broker it last spoke to for metadata, again and again, until a request times out
    # there: with a frozen one that is how long a start waits. Produce requests have a limit of their own.
    "enable.sparse.connections": "false",
    "socket.timeout.ms": "6000",
    # Errors arrive as events; of the log, only what is worse than a warning.
    "log_level": "3",
    "log.connection.close": "false",
}
_OURS = {
    "log.queue": "true",
}
_SINGLE_FILE = {"max.in.flight.requests.per.connection": "1"}
"""Without idempotence a retried request overtakes nothing only when it is alone."""

_REFUSED = {
    "message.timeout.ms": "messages wait in the spool without a time limit",
    "delivery.timeout.ms": "messages wait in the spool without a time limit",
    "transactional.id": "the delivery mode decides about transactions",
    "delivery.report.only.error": "a message without a report would never leave the spool",
    "enable.gapless.guarantee": "one record that Kafka refuses would stop all others",
    "enabled_events": "reports and errors arrive as events",
    "log.queue": "librdkafka's log arrives as events",
}
_ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "request.required.acks": "acks",
    "queue.buffering.max.ms": "linger.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
}
WHOLE_ACKS = ("all", "-1")
"""Values of `acks` with which every replica in sync has the message."""
CREDENTIAL = ".credential"
"""Behind a property: the name of the file that has its value, and could not be read."""
UNKNOWN_TOPIC_S = 60
"""How long messages wait for a topic that Kafka does not have, unless the configuration says."""
LIVE, SPARK = "live", "spark"
ENGINES = (LIVE, SPARK)
MODES = ("at_least_once", "exactly_once", "at_most_once")
_MODE_PROPERTIES = {
    # The spool waits, not a timer.
    "at_least_once": {"message.timeout.ms": "0"},
    # A message that times out aborts its transaction, and goes again with the next: librdkafka takes
    # `transaction.timeout.ms` for both.
    "exactly_once": {},
    "at_most_once": {"message.timeout.ms": "0", "acks": "0"},
}


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """How messages are delivered. `kafka` must name the `bootstrap.servers`."""

    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """librdkafka properties, as they stand in its CONFIGURATION.md: TLS, SASL, batching, compression.

    `bootstrap.servers` names the brokers, or is `embedded`: a Kafka in memory, for a first try and for tests,
    which makes every topic, and forgets everything when bruce ends. The log tells its address.

    A secret need not stand here: `"sasl.password.credential" = "kafka-password"` takes the value from a
    credential of that name, which systemd hands over (`LoadCredential=`), and so for any property; keys and
    certificates by `ssl.key.pem.credential` and its like.

    Danger: `acks` of 0 or 1 loses messages when a broker fails, and turns idempotence off unless it is set.
    The `acks` of one topic does that, too: idempotence is then off for all topics.
    """
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By topic, librdkafka's topic properties that differ from `kafka`: `compression.type`, `acks`."""
    partitioner: str = "murmur2"
    """How the partition of a message is chosen, if its topic has no partitioner of its own, and the message
    no partition key (one that has it goes by that number). `murmur2`: by the record's key, as Kafka's client
    for Java; a message without a key, or with an empty one, goes by `any`. `crc32`: the same, as librdkafka.
    `any`: whatever the key, to any partition that is there; messages that are read together go to one, then
    the next has its turn; Bruce and Dory did that. `round_robin`: each message to the next partition.
    Danger: after a change the messages of a key go on in another partition.
    """
    window_messages: int = 25_000
    """Messages in flight per broker, at most. Each takes about 400 bytes of memory beside key
    and value. Danger: low values cost throughput, high ones memory."""
    window_bytes: int = 32 << 20
    """Bytes of keys, values and headers in flight per broker, at most; one larger message goes alone. Of each
    header that a message brings 96 more count, for its memory."""
    catch_up_bytes_per_second: int = 0
    """Bytes of keys and values of the backlog that are sent in a second, at most; 0 for as fast as it goes.

    For hosts that lose Kafka together: after an outage, and at a start, what was received before waits up to
    10 s by chance, then goes at half of this or more, changing by chance. Messages whose partition has no
    backlog go at once. Danger: at less than what comes in, the backlog never ends.
    """
    stamp: bool = True
    """Give each record a header `bruce-id`: 16 bytes of spool uuid, then the sequence, big-endian.

    Costs 40 bytes a record before compression. A record that `brucectl replay` sends again has the same one,
    and a header `bruce-replay` with or without this: when the replay began, in ms since the epoch, in digits
    of ASCII. Danger: without a stamp an audit cannot match records to the log.
    """
    drain_seconds: int = 5
    """At a stop, how long what is in the spool is still delivered, in seconds; what is left then waits there
    for the next start. 0 delivers nothing more, and waits for acknowledgements only. systemd is asked for
    that time. Danger: another service manager must wait longer, or it kills bruce in the middle."""
    unknown_topic_seconds: int = UNKNOWN_TOPIC_S
    """How long messages wait for a topic that Kafka says it does not have, or does not have any more; then
    they are dead-lettered, or discarded. Danger: with a short time a topic that is made late loses its first.
    """
    dead_letter_topic: str = ""
    """The topic for messages that Kafka will never take: too large, refused for their content, of no topic.

    The value is the datagram as it was sent, the key that of the message; headers tell why (`bruce-reason`),
    the topic (`bruce-topic`), and the times of the first and last attempt (`bruce-first-attempt`,
    `bruce-last-attempt`, in ms). It must exist, or Kafka must make it on demand. A message that it refuses,
    too, is discarded. Danger: without one, and without a discard_file, such messages are counted and gone.
    """
    discard_file: Path | None = None
    """A file for messages that are discarded though they were accepted, for `brucectl replay --discards`.

    Synced before a message counts as discarded, by bruce or by a job on Spark. With this name and .1 behind
    it, it takes up to twice discard_file_bytes; the process that writes it holds a lock on the file with
    .lock behind the name. Danger: with its disk full, such messages wait, and hold their segments.
    """
    discard_file_bytes: int = 64 << 20
    """Bytes after which bruce renames the discard file to .1, over the earlier one, and begins another."""
    engine: str = LIVE
    """The deliverer. `live`: bruce itself, as messages come. `spark`: jobs only, like `brucectl spark run`;
    bruce takes messages in, and writes down what jobs have delivered. Danger: without a job nothing is
    delivered, and the spool fills."""
    mode: str = "at_least_once"
    """`at_least_once`: messages that a crash leaves unclear are sent again. `exactly_once`: in transactions,
    ten a second; a consumer with `isolation.level=read_committed` sees each message once. A broker that
    stalls delays the others for up to 10 s, until it is left out. `at_most_once`: a message counts as
    delivered before it is sent, and no acknowledgement is asked for. Danger: that loses messages."""
    progress_topic: str = "bruce-progress"
    """For `exactly_once`: the topic in which each transaction says what it delivered. Made when it is not
    there, compacted. Danger: after a crash without it, or with another one, messages are delivered twice."""


def properties(options: DispatchOptions) -> dict[str, str]:
    """The librdkafka properties that are in effect, topic defaults included.

    Raises BadProperty when one would break what bruce promises, when there are no bootstrap servers, and
    for an unknown mode. Whether librdkafka knows the property shows when the client is built.
    """
    if options.mode not in MODES:
        raise BadProperty("mode", f"dispatch mode {options.mode!r} is not one of {', '.join(MODES)}")
    given = {_ALIASES.get(key, key): value for key, value in options.kafka.items()}
    _refuse(given, "kafka")
    if not given.get("bootstrap.servers"):
        raise BadProperty(
            "bootstrap.servers",
            "Kafka property 'bootstrap.servers' is missing: name at least one host:port, or \"embedded\" for "
            "a Kafka in memory that forgets everything at the end",
        )
    if options.mode == "exactly_once":
        _refuse_weaker(given, options.topics)
    effective = {**_DEFAULTS, **given, **_MODE_PROPERTIES[options.mode], **_OURS}
    weaker = [name for name in options.topics if not _has_whole_acks(topic_properties(options, name))]
    if (weaker or not _has_whole_acks(effective)) and "enable.idempotence" not in given:
        effective["enable.idempotence"] = "false"
    if weaker and effective["enable.idempotence"] == "true":
        # librdkafka would find out at the first message.
        raise BadProperty(
            "enable.idempotence",
            f"Kafka property 'acks' in [topics.{weaker[0]}] must be 'all' with 'enable.idempotence'",
        )
    if effective["enable.idempotence"] != "true":
        effective = {**_SINGLE_FILE, **effective}
    return effective


def chooses_linger(options: DispatchOptions) -> bool:
    """Whether the configuration says how long the producer lingers."""
    return any(_ALIASES.get(key, key) == "linger.ms" for key in options.kafka)


def demand_credentials(kafka: Mapping[str, str]) -> None:
    """Raises BadProperty when the value of a property is in a credential that could not be read."""
    for key, name in kafka.items():
        if key.endswith(CREDENTIAL):
            wanted = key.removesuffix(CREDENTIAL)
            raise BadProperty(
                key,
                f"Kafka property {wanted!r}: there is no credential {name!r} that can be read; have systemd "
                f"hand it over (LoadCredential={name}:FILE), or set CREDENTIALS_DIRECTORY",
            )


def topic_properties(options: DispatchOptions, topic: str) -> dict[str, str]:
    """The librdkafka topic properties of one topic that differ from the defaults. Raises BadProperty."""
    given = dict(options.topics.get(topic, {}))
    _refuse(given, f"topics.{topic}")
    return given


def _has_whole_acks(given: Mapping[str, str]) -> bool:
    return given.get("acks", "all") in WHOLE_ACKS


def _refuse_weaker(given: Mapping[str, str], topics: Mapping[str, Mapping[str, str]]) -> None:
    """Raises BadProperty for a property that weakens a transaction."""
    for table, chosen in {"kafka": given, **{f"topics.{name}": own for name, own in topics.items()}}.items():
        for key, wanted in (("acks", WHOLE_ACKS), ("enable.idempotence", ("true",))):
            if chosen.get(key, wanted[0]) not in wanted:
                raise BadProperty(
                    key, f"Kafka property {key!r} in [{table}] must be {wanted[0]!r} with mode exactly_once"
                )


def _refuse(given: Mapping[str, str], table: str) -> None:
    for key in given:
        if key in _REFUSED:
            raise BadProperty(key, f"Kafka property {key!r} in [{table}] cannot be set: {_REFUSED[key]}")
