"""Asking for topics that Kafka may not have."""

from __future__ import annotations

import gc

import psutil

from dispatch.codes import Code
from dispatch.embedded import EmbeddedKafka
from dispatch.inquiry import MOST_ASKED, Inquiry
from dispatch.options import DispatchOptions

MIB = 1 << 20


def options(kafka: EmbeddedKafka) -> DispatchOptions:
    """No topic is made on demand."""
    return DispatchOptions(
        kafka={"bootstrap.servers": kafka.bootstrap_servers, "allow.auto.create.topics": "false"}
    )


def test_its_memory_has_a_bound() -> None:
    """The producer goes, and with it all that librdkafka keeps; each answer is about what was asked."""
    with EmbeddedKafka(topics=[("there", 3)]) as kafka:
        inquiry = Inquiry(options(kafka))
        memory = []
        for turn in range(12):
            names = [b"name-%d-%d" % (turn, n) for n in range(MOST_ASKED - 1)] + [b"there"]
            found = inquiry.ask(names, 10)
            assert found.topics.keys() == {b"there"}
            assert len(found.topics[b"there"]) == 3
            assert found.errors == dict.fromkeys(names[:-1], Code.UNKNOWN_TOPIC_OR_PART)
            gc.collect()
            memory.append(psutil.Process().memory_info().rss)
        inquiry.close()
        # A producer that is not thrown away takes 25 MiB each time.
        assert memory[-1] - memory[2] < 100 * MIB
