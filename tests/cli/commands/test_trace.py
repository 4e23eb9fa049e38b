"""`brucectl trace` on daemons: it reports the asked messages' events, and nothing of others."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from router.outcomes.trace_request import events_path, request_path
from spool.shared.histogram import read_latency
from spool.shared.state import Field, read_shared_state
from tests.cli.tracing import SECRET, bruce_page, message, trace
from tests.daemon import PATIENCE_S, RunningBruce, consume

KEY = b"customer-7"


def reports_in(bruce: RunningBruce) -> int:
    """Messages whose report has come, by the histogram of latency."""
    shared = read_shared_state(bruce_page(bruce))
    return 0 if shared is None else sum(read_latency(shared[Field.LATENCY :]).counts)


@pytest.mark.sample("at_least_once")
@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once", "at_most_once"])
def test_the_way_of_a_message(tmp_path: Path, mode: str) -> None:
    """Received, routed, sent, acknowledged, in time's order; partition and offset are where Kafka has it."""
    with (
        EmbeddedKafka(brokers=3, topics=[("t", 4), ("u", 2)]) as kafka,
        RunningBruce(tmp_path, kafka.bootstrap_servers, settings={"dispatch": {"mode": mode}}) as bruce,
    ):
        bruce.send(message(b"t", n) for n in range(5))
        bruce.await_status(lambda s: s.delivered == 5)
        with trace(bruce, tmp_path / "out", "--topic", "t", "--key", KEY.decode()) as found:
            bruce.send(
                [
                    message(b"t", 5),
                    message(b"u", 6, KEY),
                    message(b"t", 7, KEY),
                    message(b"t", 8, b"customer-8"),
                ]
            )
            bruce.await_true(lambda: found.has("acknowledged"))
            bruce.await_status(lambda s: s.delivered == 9)
            events = [event for event in found.events() if "sequence" in event]
            # With at_most_once, a message counts as delivered before its report comes.
            bruce.await_true(lambda: reports_in(bruce) == 9)
            # No other user has a way to the events.
            assert events_path(bruce_page(bruce)).stat().st_mode & 0o077 == 0
        assert [event["event"] for event in events] == ["received", "routed", "sent", "acknowledged"]
        assert len({event["sequence"] for event in events}) == 1
        assert [event["time"] for event in events] == sorted(event["time"] for event in events)
        received, routed, sent, acknowledged = events
        assert (received["topic"], received["key_bytes"]) == ("t", len(KEY))
        assert received["pid"] == os.getpid()
        place = acknowledged["partition"], acknowledged["offset"]
        if mode == "at_most_once":
            # No acknowledgement follows there.
            assert place[1] == -1
            return
        assert routed["partition"] == sent["partition"] == place[0]
        record = next(r for r in consume(kafka.bootstrap_servers, "t", 4, 8) if r.key() == KEY)
        assert (record.partition(), record.offset()) == place
        assert sent["broker"] in {broker.id for broker in bruce.status().brokers}
        assert 0 < acknowledged["after_ms"] < 1000 * PATIENCE_S
        assert SECRET.decode() not in found.out.read_text()
        assert not request_path(bruce_page(bruce)).exists()


def test_payload_only_when_asked_for(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """With --payload key and value are shown; bytes that are no text, in base64."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        with trace(bruce, tmp_path / "out", "--topic", "u", "--payload") as found:
            bruce.send([message(b"u", 1, b"\xff"), message(b"u", 2)])
            bruce.await_true(lambda: found.has("acknowledged", 2))
        first, second = [event for event in found.events() if event["event"] == "received"]
        assert (first["key_base64"], first["value"]) == ("/w==", SECRET.decode() + " 1")
        assert (second["key"], second["value"]) == (None, SECRET.decode() + " 2")
        bruce.await_status(lambda s: s.delivered == 2)
        assert SECRET.decode() not in bruce.log.read_text()


@pytest.mark.long
def test_it_ends_by_itself(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """When its time is over, and when its bytes are used up: each says so, with exit code 0."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        brief = bruce.brucectl("trace", "--topic", "t", "--for", "1s", "--json")
        assert brief.returncode == 0
        assert json.loads(brief.stdout.splitlines()[-1])["why"] == "its time is over"
        with trace(bruce, tmp_path / "out", "--topic", "t", "--bytes", "2000") as found:
            bruce.send(message(b"t", n) for n in range(500))
            assert found.process.wait(PATIENCE_S) == 0
        assert found.events()[-1]["why"] == "its bytes are used up"
        assert found.out.stat().st_size < 3000
        bruce.await_status(lambda s: s.delivered == 500)
        assert bruce.logged("the trace has ended: its bytes are used up") == 1


@pytest.mark.long
def test_one_at_a_time(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A second one is refused in a sentence; --stop ends the first; without a daemon there is none."""
    with RunningBruce(tmp_path, kafka.bootstrap_servers) as bruce:
        with trace(bruce, tmp_path / "out", "--topic", "t") as found:
            second = bruce.brucectl("trace", "--topic", "u")
            assert (second.returncode, b"another trace runs" in second.stderr) == (1, True)
            assert bruce.brucectl("trace", "--stop").returncode == 0
            assert found.process.wait(PATIENCE_S) == 0
        assert found.events()[-1]["why"] == "it was stopped"
        assert bruce.brucectl("trace").returncode == 2
        assert bruce.brucectl("trace", "--topic", "t", "--for", "2h").returncode == 2
        assert bruce.brucectl("trace", "--topic", "t", "--bytes", "many").returncode == 2
        bruce.stop()
        dead = bruce.brucectl("trace", "--topic", "t")
        assert (dead.returncode, b"no daemon is running" in dead.stderr) == (3, True)


def test_what_waits_and_what_is_discarded(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Beyond its topic's rate a message waits, once, and is sent later; one of no topic is discarded."""
    settings = {"dispatch": {"unknown_topic_seconds": 0}, 'topics."u"': {"rate": 2}}
    with RunningBruce(tmp_path, kafka.bootstrap_servers, settings=settings) as bruce:
        with trace(bruce, tmp_path / "out", "--topic", "u", "--topic", "no topic") as found:
            bruce.send([message(b"no topic", 0), *(message(b"u", n) for n in range(1, 7))])
            bruce.await_true(lambda: found.has("acknowledged", 6) and found.has("discarded"))
        told = {event["sequence"] for event in found.events() if "sequence" in event}
        ways = [found.names(sequence) for sequence in sorted(told)]
        assert ["received", "discarded"] in ways
        assert next(e["reason"] for e in found.events() if e["event"] == "discarded") == "unknown_topic"
        waited = ["received", "routed", "waits", "sent", "acknowledged"]
        assert waited in ways
        assert all(
            way in (waited, ["received", "routed", "sent", "acknowledged"]) for way in ways if len(way) > 2
        )
