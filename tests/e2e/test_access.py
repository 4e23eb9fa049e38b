"""[access] in a running daemon: rules for users and for TCP, also after a reload; and their reports."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from ingest.reply import WHEN_SYNCED, Status
from spool.format.wire import Reason, encode
from tests.ack_client import Client
from tests.cli.program import run
from tests.daemon import RunningBruce, free_port
from tests.ingest.processes import end_children
from tests.ingest.test_access import root_only, send_as

PAY, LOGS = encode(b"pay", b"p", timestamp=1), encode(b"logs", b"l", timestamp=1)
SHOP, THIEF = 4001, 4002


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker and two topics."""
    with EmbeddedKafka(brokers=1, topics=[("pay", 1), ("logs", 1)]) as running:
        yield running


@pytest.fixture
def bruce(kafka: EmbeddedKafka, tmp_path: Path) -> Iterator[RunningBruce]:
    """A daemon with every input, that others than root reach."""
    running = RunningBruce(tmp_path, kafka.bootstrap_servers, segment_bytes=4 << 20)
    running.runtime.chmod(0o755)
    running.configure(
        {
            "access": {"pay": [f"uid:{SHOP}"]},
            "ingest": {
                "stream_socket": str(running.runtime / "stream"),
                "tcp_port": free_port(),
                "ack_socket": str(running.runtime / "ack"),
            },
            "status": {"port": free_port()},
        }
    )
    with running:
        yield running
    end_children()


def by_sender(bruce: RunningBruce) -> dict[str, tuple[int, int]]:
    """(received, not permitted) by uid."""
    return {
        one.sender: (one.received, one.discarded.get("not_permitted", 0)) for one in bruce.status().senders
    }


@contextmanager
def being(uid: int) -> Iterator[None]:
    """Have another user's name for a moment."""
    os.setresuid(uid, uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def send_by_tcp(bruce: RunningBruce, data: bytes) -> None:
    """One connection."""
    port = bruce._tables["ingest"]["tcp_port"]
    with socket.create_connection(("127.0.0.1", port)) as stream:
        stream.sendall(data)


@root_only
def test_refused_by_sender_and_told_everywhere(bruce: RunningBruce) -> None:
    """Datagrams and TCP: what is refused is counted by uid, in status, discards and metrics alike."""
    send_as(bruce.socket, SHOP, SHOP, [PAY, LOGS])
    send_as(bruce.socket, THIEF, THIEF, [PAY, PAY, LOGS])
    send_by_tcp(bruce, PAY + LOGS)
    bruce.await_status(lambda seen: seen.delivered == 4)
    bruce.await_true(lambda: by_sender(bruce) == {str(THIEF): (3, 2), str(SHOP): (2, 0), "unknown": (2, 1)})
    assert bruce.status().discarded == {"not_permitted": 3}
    listed = json.loads(run("discards", "--json", "--spool", bruce.spool).stdout)
    assert sorted((one["sender"], one["messages"]) for one in listed["senders"]) == [
        (str(THIEF), 2),
        ("unknown", 1),
    ]
    assert {one["topic"] for one in listed["samples"]} == {"pay"}
    metrics = bruce.metrics()
    assert f'bruce_sender_messages_received_total{{uid="{THIEF}"}} 3.0' in metrics
    assert (
        f'bruce_sender_messages_discarded_total{{reason="not_permitted",uid="{THIEF}"}} 2.0' in metrics
        or f'bruce_sender_messages_discarded_total{{uid="{THIEF}",reason="not_permitted"}} 2.0' in metrics
    )


@root_only
def test_streams_go_by_who_connected(bruce: RunningBruce) -> None:
    """SO_PEERCRED is read when a client connects: later messages go by that."""
    stream = socket.socket(socket.AF_UNIX)
    with being(THIEF):
        stream.connect(str(bruce.runtime / "stream"))
    stream.sendall(PAY + LOGS + PAY)
    stream.close()
    # A message offered counts as received; the rules are asked when it is stored.
    bruce.await_status(lambda seen: (seen.received, seen.discarded) == (3, {"not_permitted": 2}))
    bruce.await_true(lambda: by_sender(bruce) == {str(THIEF): (3, 2)})


@root_only
def test_the_acknowledger_asks_the_same_rules(bruce: RunningBruce) -> None:
    """Messages through ack_socket carry bruce's own name: the rules are asked before, about the sender."""
    with Client(bruce.runtime / "ack") as client:
        with being(THIEF):
            refused = client.send(b"p", WHEN_SYNCED, topic=b"pay")
        with being(SHOP):
            stored = client.send(b"q", WHEN_SYNCED, topic=b"pay")
        client.collect(lambda seen: len(seen) == 2)
        assert {(said, key) for said, key in client.counted()} == {
            (Status.DISCARDED, refused),
            (Status.SYNCED, stored),
        }
        assert {reply.reason for reply in client.told} == {0, Reason.NOT_PERMITTED}
    seen = bruce.await_status(lambda seen: seen.delivered == 1)
    assert seen.received == 1
    assert seen.acknowledgements is not None
    assert seen.acknowledgements.refused == 1


@root_only
def test_other_rules_by_a_reload(bruce: RunningBruce) -> None:
    """SIGHUP: the intake has the new rules, and nothing that was sent meanwhile is lost."""
    send_as(bruce.socket, THIEF, THIEF, [PAY])
    bruce.await_status(lambda seen: seen.discarded == {"not_permitted": 1})
    pid = next(w.pid for w in bruce.status().workers if w.role == "ingest")
    bruce.configure({"access": {"pay": [f"uid:{SHOP}", f"gid:{THIEF}"], "logs": []}})
    bruce.tell(signal.SIGHUP)
    send_as(bruce.socket, SHOP, SHOP, [PAY] * 200)
    bruce.await_true(
        lambda: next(w.pid for w in bruce.status().workers if w.role == "ingest") not in (0, pid)
    )
    send_as(bruce.socket, THIEF, THIEF, [PAY, LOGS])
    seen = bruce.await_status(lambda seen: seen.received == 203)
    assert seen.discarded == {"not_permitted": 2}
    assert next(w.restarts for w in seen.workers if w.role == "ingest") == 0
    # A rule that cannot be is refused whole, and the old ones stay.
    bruce.configure({"access": {"pay": ["user:missing-user"]}})
    bruce.tell(signal.SIGHUP)
    bruce.await_true(lambda: bruce.logged("there is no user 'missing-user'") == 1)
    send_as(bruce.socket, THIEF, THIEF, [PAY])
    bruce.await_status(lambda seen: seen.received == 204 and seen.discarded == {"not_permitted": 2})
