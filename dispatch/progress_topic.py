"""The topic in which transactions leave their progress records, and how a successor reads the last one."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dispatch.cluster import Cluster
from dispatch.codes import Code
from dispatch.errors import Unreachable
from dispatch.progress import BadProgress, Progress, decode

Keep = Callable[[Message], object]
_log = logging.getLogger("bruce.dispatch")

ANSWER_S = 10.0
"""How long one answer of a broker is waited for."""
SILENT = {"log_level": "0"}
"""What they would write to stderr is said by their exceptions."""
MADE_TRIES = 20
"""A broker may know a topic only a little after it was made."""
READ_S = 120.0
"""How long reading may take: transactions of other hosts that are open hide what comes behind them, until
they end or time out."""


class Place(NamedTuple):
    """Where the next record of ours will be, or a later one."""

    partition: int
    offset: int


class Found(NamedTuple):
    """A record, and where it lies."""

    key: str
    partition: int
    progress: Progress


class ProgressTopic:
    """One spool's records. Every call waits for brokers, and raises Unreachable."""

    def __init__(
        self, kafka: Mapping[str, str], name: str, key: bytes, fetch: Callable[[list[bytes], float], Cluster]
    ) -> None:
        """`kafka`: librdkafka properties; `key`: that of our records; `fetch`: KafkaClient.fetch_cluster."""
        self.name, self.key = name, key
        self._kafka: dict[str, str | int | float | bool] = dict(kafka)
        self._fetch = fetch

    def ensure(self) -> int:
        """Make the topic unless it is there, compacted; its number of partitions."""
        known = self._look()
        if known:
            return known
        said = self._create()
        for _ in range(MADE_TRIES):
            # A broker that makes topics on demand makes it now, if we may not.
            self._fetch([self.name.encode()], ANSWER_S)
            known = self._look()
            if known:
                return known
            time.sleep(0.25)
        raise Unreachable(
            int(Code.UNKNOWN_TOPIC_OR_PART),
            f"the topic {self.name}, which exactly_once needs, is not there and cannot be made ({said}): "
            "create it with cleanup.policy=compact",
        )

    def _look(self) -> int:
        """How many partitions the topic has; asking does not make it."""
        reader = self._consumer("read_committed")
        try:
            return len(reader.list_topics(self.name, ANSWER_S).topics[self.name].partitions)
        except KafkaException as error:
            said = error.args[0]
            raise Unreachable(
                said.code(), f"the topic {self.name} cannot be looked up: {said.str()}"
            ) from None
        finally:
            reader.close()

    def _create(self) -> str:
        """Ask for the topic; what Kafka said."""
        wanted = NewTopic(self.name, -1, -1, config={"cleanup.policy": "compact"})
        admin = AdminClient({**self._kafka, **SILENT})
        try:
            admin.create_topics([wanted], request_timeout=ANSWER_S)[self.name].result()
        except KafkaException as error:
            return str(error.args[0].str())
        _log.info("the topic %s was made, compacted", self.name)
        return "made"

    def read_family(self) -> tuple[dict[str, Found], list[Place]]:
        """By key, the last record under ours and under each that begins with it; and behind what was read.

        The whole topic is read.
        """
        last: dict[tuple[int, bytes], Message] = {}

        def keep(message: Message) -> None:
            last[int(message.partition() or 0), message.key() or b""] = message

        ends = self._look_through([TopicPartition(self.name, p, 0) for p in range(self.ensure())], keep)
        family: dict[str, Found] = {}
        for message in last.values():
            found = self._found(message)
            before = family.get(found.key)
            if before is None or found.progress.number > before.progress.number:
                family[found.key] = found
        return family, [Place(*end) for end in ends.items()]

    def read_since(self, places: Iterable[Place]) -> tuple[list[Found], list[Place]]:
        """Every record under our key, and under those that begin with it, from these places on."""
        messages: list[Message] = []
        ends = self._look_through([TopicPartition(self.name, *place) for place in places], messages.append)
        return [self._found(message) for message in messages], [Place(*end) for end in ends.items()]

    def _found(self, message: Message) -> Found:
        key = (message.key() or b"").decode(errors="backslashreplace")
        return Found(key, int(message.partition() or 0), _decoded(self.name, message))

    def _look_through(self, starts: list[TopicPartition], keep: Keep) -> dict[int, int]:
        try:
            return self._read(starts, keep)
        except KafkaException as error:
            said = error.args[0]
            raise Unreachable(said.code(), f"the topic {self.name} cannot be read: {said.str()}") from None

    def read(self, place: Place | None) -> tuple[Progress | None, Place]:
        """The last record of ours from `place` on, and where the next may be.

        Without a place, or with one that cannot be, everything is read.
        """
        count = self.ensure()
        if place and place.partition < count:
            starts = [TopicPartition(self.name, place.partition, place.offset)]
        else:
            place, starts = None, [TopicPartition(self.name, p, 0) for p in range(count)]
        last: dict[int, Message] = {}

        def keep(message: Message) -> None:
            if message.key() == self.key:
                last[int(message.partition() or 0)] = message

        ends = self._look_through(starts, keep)
        partition = place.partition if place else home_of(self.key, count)
        best: Progress | None = None
        for at, message in last.items():
            progress = _decoded(self.name, message)
            if best is None or progress.number > best.number:
                best, partition = progress, at
        return best, Place(partition, ends[partition])

    def _read(self, starts: list[TopicPartition], keep: Keep) -> dict[int, int]:
        """Have each message of ours kept, all of it decided; by partition, behind the last record."""
        ends = self._ends(starts)
        reader = self._consumer("read_committed")
        open_ = {partition for partition, end in ends.items() if end > 0}
        deadline = time.monotonic() + READ_S
        try:
            reader.assign(starts)
            while open_:
                for message in reader.consume(1000, 0.1):
                    partition, error = int(message.partition() or 0), message.error()
                    if error is None:
                        if (message.key() or b"").startswith(self.key):
                            keep(message)
                    elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  (its public name)
                        raise KafkaException(error)
                    elif (message.offset() or 0) >= ends[partition]:
                        open_.discard(partition)
                if time.monotonic() > deadline:
                    raise Unreachable(
                        int(Code.TIMED_OUT),
                        f"{self.name} could not be read to its end in {READ_S:.0f} s: a transaction of "
                        "another host may be open in it",
                    )
        finally:
            reader.close()
        return ends

    def _ends(self, starts: list[TopicPartition]) -> dict[int, int]:
        """By partition, behind the last record, decided or not."""
        reader = self._consumer("read_uncommitted")
        try:
            return {start.partition: reader.get_watermark_offsets(start, ANSWER_S)[1] for start in starts}
        finally:
            reader.close()

    def _consumer(self, isolation: str) -> Consumer:
        return Consumer(
            {
                **self._kafka,
                "group.id": "bruce-progress",
                "enable.auto.commit": "false",
                "enable.partition.eof": "true",
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
                **SILENT,
            }
        )


def home_of(key: bytes, partitions: int) -> int:
    """Where the first record under a key goes, of so many partitions."""
    return zlib.crc32(key) % partitions


def _decoded(topic: str, message: Message) -> Progress:
    """What a message says. Raises Unreachable."""
    try:
        return decode(message.value() or b"")
    except BadProgress as error:
        where = f"{topic}, partition {message.partition()}, offset {message.offset()}"
        raise Unreachable(int(Code.BAD_MSG), f"{where}: {error}") from None
