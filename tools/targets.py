"""The Kafka that benches and the storm deliver to: real brokers or the embedded one, by the same methods."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dispatch.embedded import EmbeddedKafka
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics

COPIES = 3
FROZEN_MS = 600_000


class Target(Protocol):
    """A cluster with brokers 1 to `size`, and its topics."""

    size: int

    @property
    def bootstrap(self) -> str: ...

    def kill(self, broker: int) -> None: ...

    def start(self, broker: int) -> None: ...

    def freeze(self, broker: int) -> None: ...

    def thaw(self, broker: int) -> None: ...

    def lose(self, broker: int) -> None:
        """Kill a broker, running or frozen, and let others lead its partitions."""
        ...

    def cut_all(self) -> None:
        """Cut every broker off; its connections stay open."""
        ...

    def mend_all(self) -> None:
        """Undo that."""
        ...

    def stop_all(self) -> None: ...

    def start_all(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Real:
    """Apache Kafka. Three brokers keep three copies, and want two of them."""

    def __init__(
        self, directory: Path, size: int, topics: Mapping[str, int], *, auto_create: bool = True
    ) -> None:
        self.size = size
        self._cluster = KafkaCluster(directory, size, auto_create=auto_create)
        self._topics = topics

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def kill(self, broker: int) -> None:
        self._cluster.kill(broker)

    def start(self, broker: int) -> None:
        self._cluster.start(broker)

    def freeze(self, broker: int) -> None:
        self._cluster.freeze(broker)

    def thaw(self, broker: int) -> None:
        self._cluster.thaw(broker)

    def lose(self, broker: int) -> None:
        """Kafka's controller moves the leaders."""
        self._cluster.kill(broker)

    def cut_all(self) -> None:
        for broker in self._cluster.brokers:
            self._cluster.cut(broker.id)

    def mend_all(self) -> None:
        for broker in self._cluster.brokers:
            self._cluster.mend(broker.id)

    def stop_all(self) -> None:
        self._cluster.down()

    def start_all(self) -> None:
        self._cluster.heal()

    def __enter__(self) -> Self:
        self._cluster.up()
        try:
            self.create(self._topics)
        except BaseException:
            self._cluster.down()
            raise
        return self

    def create(self, topics: Mapping[str, int]) -> None:
        """Make topics: {name: partitions}. Returns when they are there."""
        copies = min(COPIES, self.size)
        make_topics(self.bootstrap, [NewTopic(name, count, copies) for name, count in topics.items()])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.down()


class Embedded:
    """librdkafka's mock cluster. It keeps 5 MiB a partition, and does not remove duplicates of retries."""

    def __init__(self, size: int, topics: Mapping[str, int]) -> None:
        self.size = size
        self._topics = topics
        self._kafka: EmbeddedKafka | None = None

    @property
    def kafka(self) -> EmbeddedKafka:
        assert self._kafka is not None
        return self._kafka

    @property
    def bootstrap(self) -> str:
        return self.kafka.bootstrap_servers

    def kill(self, broker: int) -> None:
        self.kafka.down(broker)

    def start(self, broker: int) -> None:
        self.kafka.up(broker)

    def freeze(self, broker: int) -> None:
        """Answers are held back; what was asked is done."""
        self.kafka.rtt(broker, FROZEN_MS)

    def thaw(self, broker: int) -> None:
        """The delayed answers come with the next connections."""
        self.kafka.rtt(broker, 0)
        self.kafka.down(broker)
        self.kafka.up(broker)

    def lose(self, broker: int) -> None:
        """This cluster moves no leaders by itself."""
        self.thaw(broker)
        heirs = itertools.cycle(other for other in range(1, self.size + 1) if other != broker)
        metadata = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 4}).list_topics(timeout=30)
        for name in self._topics:
            for partition in metadata.topics[name].partitions.values():
                if partition.leader == broker:
                    self.kafka.leader(name, partition.id, next(heirs))
        self.kill(broker)

    def cut_all(self) -> None:
        """Answers are held back; what was asked is done."""
        for broker in range(1, self.size + 1):
            self.freeze(broker)

    def mend_all(self) -> None:
        for broker in range(1, self.size + 1):
            self.thaw(broker)

    def stop_all(self) -> None:
        self.kafka.down()

    def start_all(self) -> None:
        self.kafka.up()

    def __enter__(self) -> Self:
        self._kafka = EmbeddedKafka(brokers=self.size, topics=list(self._topics.items()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kafka.close()
