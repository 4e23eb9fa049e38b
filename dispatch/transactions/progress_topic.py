"""The topic in which transactions leave their progress records, and how a successor reads the last one."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dispatch.client import Cluster
from dispatch.errors import Code, Unreachable
from dispatch.timing import PROGRESS_ANSWER_S, PROGRESS_READ_S
from dispatch.transactions.progress import BadProgress, Progress, decode

Keep = Callable[[Message], object]
IsOurs = Callable[[bytes], bool]
"""Of a record's key."""
_log = logging.getLogger("bruce.dispatch")

SILENT = {"log_level": "0"}
"""Their exceptions say what they would write to stderr."""
MADE_TRIES = 20
"""A broker may know a topic only a little after it was made."""


class ProgressPosition(NamedTuple):
    """The position of the next record of ours, or of a later one."""

    partition: int
    offset: int


class Found(NamedTuple):
    """A record, and where it is."""

    key: str
    partition: int
    progress: Progress


class ProgressTopic:
    """One spool's records. Every call waits for brokers, and raises Unreachable."""

    def __init__(
        self,
        kafka: Mapping[str, str],
        name: str,
        key: bytes,
        fetch: Callable[[list[bytes], float], Cluster],
        *,
        read_s: float = PROGRESS_READ_S,
    ) -> None:
        """`kafka`: librdkafka properties; `key`: that of our records; `fetch`: KafkaClient.fetch_cluster.

        `read_s`: how long reading may take.
        """
        self.name, self.key, self._read_s = name, key, read_s
        self._kafka: dict[str, str | int | float | bool] = dict(kafka)
        self._fetch = fetch

    def ensure(self) -> int:
        """Make the topic unless it is there, compacted; its number of partitions. Raises Unreachable."""
        known = self._look()
        if known:
            return known
        said = self._create()
        for _ in range(MADE_TRIES):
            # A broker that makes topics on demand makes it now, if we may not.
            self._fetch([self.name.encode()], PROGRESS_ANSWER_S)
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
            return len(reader.list_topics(self.name, PROGRESS_ANSWER_S).topics[self.name].partitions)
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
            admin.create_topics([wanted], request_timeout=PROGRESS_ANSWER_S)[self.name].result()
        except KafkaException as error:
            return str(error.args[0].str())
        _log.info("the topic %s was made, compacted", self.name)
        return "made"

    def ends(self) -> tuple[int, ...]:
        """By partition, behind its last record: a producer that begins now leaves its own there, or later."""
        count = self.ensure()
        with self._reaching(), closing(self._consumer("read_uncommitted")) as reader:
            return tuple(self._watermarks(reader, range(count)).values())

    def read_family(self) -> tuple[dict[str, Found], list[ProgressPosition]]:
        """By key, the last record under ours and under each that begins with it; and behind what was read.

        The whole topic is read.
        """
        last: dict[tuple[int, bytes], Message] = {}

        def keep(message: Message) -> None:
            last[int(message.partition() or 0), message.key() or b""] = message

        ends = self._look_through(
            [TopicPartition(self.name, p, 0) for p in range(self.ensure())], self._is_family, keep
        )
        family: dict[str, Found] = {}
        for message in last.values():
            found = self._found(message)
            before = family.get(found.key)
            if before is None or found.progress.number > before.progress.number:
                family[found.key] = found
        return family, [ProgressPosition(*end) for end in ends.items()]

    def read_since(self, places: Iterable[ProgressPosition]) -> tuple[list[Found], list[ProgressPosition]]:
        """Every record under our key, and under those that begin with it, from these places on."""
        messages: list[Message] = []
        starts = [TopicPartition(self.name, *place) for place in places]
        ends = self._look_through(starts, self._is_family, messages.append)
        return [self._found(message) for message in messages], [
            ProgressPosition(*end) for end in ends.items()
        ]

    def _is_family(self, key: bytes) -> bool:
        return key.startswith(self.key)

    def _found(self, message: Message) -> Found:
        key = (message.key() or b"").decode(errors="backslashreplace")
        return Found(key, int(message.partition() or 0), _decoded(self.name, message))

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            said = error.args[0]
            raise Unreachable(said.code(), f"the topic {self.name} cannot be read: {said.str()}") from None

    def look(self, place: ProgressPosition | None) -> tuple[Progress | None, ProgressPosition]:
        """The same as `read`, of what is decided by now."""
        return self.read(place, waits=False)

    def read(
        self, place: ProgressPosition | None, *, waits: bool = True
    ) -> tuple[Progress | None, ProgressPosition]:
        """The last record of ours from `place` on, and where the next may be.

        The process that had the name must be fenced, so that each record of ours is decided, or will be soon.
        Without a place, or with one that cannot be, everything is read.
        """
        count = self.ensure()
        if place and place.partition < count:
            starts = [TopicPartition(self.name, place.partition, place.offset)]
        else:
            place, starts = None, [TopicPartition(self.name, p, 0) for p in range(count)]
        last: dict[int, Message] = {}

        def keep(message: Message) -> None:
            last[int(message.partition() or 0)] = message

        ends = self._look_through(starts, self.key.__eq__, keep, waits=waits)
        partition = place.partition if place else home_of(self.key, count)
        best: Progress | None = None
        for at, message in last.items():
            progress = _decoded(self.name, message)
            if best is None or progress.number > best.number:
                best, partition = progress, at
        return best, ProgressPosition(partition, ends[partition])

    def _look_through(
        self, starts: list[TopicPartition], is_ours: IsOurs, keep: Keep, *, waits: bool = True
    ) -> dict[int, int]:
        """Have each committed message of ours kept; by partition, behind what was looked through.

        Any open transaction hides what is committed behind it. So it is waited for where a record of ours is
        behind it, and only there: to wait for all of them is to wait for every task that has died.
        """
        with (
            self._reaching(),
            closing(self._consumer("read_committed")) as decided,
            closing(self._consumer("read_uncommitted")) as everything,
        ):
            partitions = [start.partition for start in starts]
            ends = self._watermarks(decided, partitions)
            if waits:
                self._extend(everything, starts, ends, is_ours)
            self._consume(decided, starts, ends, is_ours, keep)
        return ends

    def _extend(
        self, everything: Consumer, starts: list[TopicPartition], ends: dict[int, int], is_ours: IsOurs
    ) -> None:
        """Move the ends of what is decided behind the last record of ours that is not."""
        last = self._watermarks(everything, ends)
        hidden = [
            TopicPartition(self.name, start.partition, max(start.offset, ends[start.partition]))
            for start in starts
            if ends[start.partition] < last[start.partition]
        ]

        def note(message: Message) -> None:
            partition, offset = int(message.partition() or 0), int(message.offset() or 0)
            ends[partition] = max(ends[partition], offset + 1)

        self._consume(everything, hidden, last, is_ours, note)

    def _consume(
        self,
        reader: Consumer,
        starts: list[TopicPartition],
        ends: Mapping[int, int],
        is_ours: IsOurs,
        keep: Keep,
    ) -> None:
        """Have each message of ours kept, up to these ends."""
        open_ = {start.partition for start in starts if ends[start.partition] not in (0, start.offset)}
        deadline = time.monotonic() + self._read_s
        reader.assign([start for start in starts if start.partition in open_])
        while open_:
            for message in reader.consume(1000, 0.1):
                partition, error = int(message.partition() or 0), message.error()
                if error is None:
                    if is_ours(message.key() or b""):
                        keep(message)
                elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  (its public name)
                    raise KafkaException(error)
                elif (message.offset() or 0) >= ends[partition]:
                    open_.discard(partition)
            if time.monotonic() > deadline:
                raise Unreachable(
                    int(Code.TIMED_OUT),
                    f"{self.name} could not be read to its end in {self._read_s:.0f} s: a transaction of "
                    "another host may be open in it",
                )

    def _watermarks(self, reader: Consumer, partitions: Iterable[int]) -> dict[int, int]:
        """By partition, behind the last record that this reader is shown."""
        return {
            partition: reader.get_watermark_offsets(TopicPartition(self.name, partition), PROGRESS_ANSWER_S)[
                1
            ]
            for partition in partitions
        }

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
    """The partition of the first record under a key, of so many."""
    return zlib.crc32(key) % partitions


def _decoded(topic: str, message: Message) -> Progress:
    """The progress record in a message. Raises Unreachable."""
    try:
        return decode(message.value() or b"")
    except BadProgress as error:
        where = f"{topic}, partition {message.partition()}, offset {message.offset()}"
        raise Unreachable(int(Code.BAD_MSG), f"{where}: {error}") from None
