"""The status page in a real browser, and real brokers that go down and come back."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spool.format.wire import encode
from status.web import EACH_S
from tests.daemon import RunningBruce, free_port
from tests.real_kafka.test_bruce import PARTITIONS, create
from tests.status.browser import Browser
from tests.status.chromium import demand_browser
from tools.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.real_kafka

WITHIN_S = 3
FAULTS: dict[str, tuple[Callable[[KafkaCluster, int], None], Callable[[KafkaCluster, int], None]]] = {
    "killed": (KafkaCluster.kill, KafkaCluster.start),
    "frozen": (KafkaCluster.freeze, KafkaCluster.thaw),
}
COUNT_LOOKS = (
    "window.looks = 0; new EventSource('api/v1/stream').addEventListener('status', () => looks++); 0"
)
"""Counts the page's updates, beside it: one each second, later on a machine that has other work."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests of this file."""
    with Browser(demand_browser()) as running:
        yield running


@pytest.fixture
def traffic(kafka3: KafkaCluster, tmp_path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """The address of a daemon's page, and a function that sends to every partition."""
    topic = f"page-{uuid.uuid4().hex}".encode()
    create(kafka3, topic)
    port = free_port()
    with RunningBruce(tmp_path, kafka3.bootstrap, settings={"status": {"port": port}}) as bruce:

        def send() -> None:
            bruce.send(encode(topic, b"more", partition_key=number) for number in range(2 * PARTITIONS))

        send()
        bruce.await_status(lambda s: s.delivered == 2 * PARTITIONS)
        yield f"http://127.0.0.1:{port}/", send


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broker_goes_down(
    kafka3: KafkaCluster,
    traffic: tuple[str, Callable[[], None]],
    browser: Browser,
    record_property: Callable[[str, object], None],
    fault: str,
) -> None:
    """An open page shows it within three seconds, without being asked, and that the broker is back."""
    url, send = traffic
    down, up = FAULTS[fault]

    def shows(words: str, text: str) -> bool:
        # A broker that gets nothing has nothing to be late with.
        send()
        return words in " ".join(text.split())

    browser.show(url)
    browser.await_text(lambda text: shows("broker 2", text) and "stalled" not in text, "#brokers")
    # The page of the test before has lost its daemon.
    browser.complaints.clear()
    browser.evaluate(COUNT_LOOKS)
    browser.await_text(lambda text: shows("", text) and browser.evaluate("looks") > 0)
    before, began = browser.evaluate("looks"), time.monotonic()
    down(kafka3, 2)
    browser.await_text(lambda text: shows("broker 2 stalled", text), "#brokers")
    looks, seconds = browser.evaluate("looks") - before, time.monotonic() - began
    record_property("seconds", round(seconds, 2))
    assert looks * EACH_S <= WITHIN_S, f"shown after {looks} looks, {seconds:.1f} s"
    up(kafka3, 2)
    browser.await_text(lambda text: shows("broker 2", text) and "stalled" not in text, "#brokers")
    assert browser.complaints == []
