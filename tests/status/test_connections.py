"""Connections in each place that counts them: `status --json`, /metrics, the page, and Dory's counters."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from dispatch.embedded import EmbeddedKafka
from ingest.buffers.connection_buffer import CLOSINGS
from spool.format.wire import encode
from tests.daemon import free_port
from tests.status.browser import Browser
from tests.status.chromium import demand_browser
from tests.status.conftest import Served, serve
from tests.status.promql import read
from tests.status.test_api import check

LIMIT = 100_000
GOOD = encode(b"t", b"v")
ENDINGS = {
    "stream": [GOOD, GOOD + GOOD[:9], GOOD + b"\0\0\0\1", (LIMIT + 5).to_bytes(4, "big")],
    "tcp": [GOOD[:5], b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00"],
}
"""The bytes that senders send before they end; one more of each input stays, after a message."""
STREAM = {"clean": 1, "unclean": 1, "bad_size": 1, "too_long": 1}
TCP = {"unclean": 1, "http": 1, "tls": 1}
UNTOLD = dict.fromkeys(CLOSINGS, 0)


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory, kafka: EmbeddedKafka) -> Iterator[Served]:
    """A daemon with all inputs, each of which had connections that ended, and has one open."""
    tcp = free_port()
    bruce, port = serve(tmp_path_factory.mktemp("doors"), kafka)
    path = str(bruce.runtime / "stream")
    bruce.configure({"ingest": {"stream_socket": path, "tcp_port": tcp, "max_stream_message_bytes": LIMIT}})

    def connect(name: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX if name == "stream" else socket.AF_INET)
        made.connect(path if name == "stream" else ("127.0.0.1", tcp))
        return made

    with bruce:
        found = Served(bruce, port)
        bruce.await_true(found.answers)
        # Data from before the first request is in no report of discards.
        found.get("/discards/json")
        bruce.send([GOOD, b"short"])
        staying = [connect(name) for name in ENDINGS]
        for name, endings in ENDINGS.items():
            for data in endings:
                with connect(name) as sender:
                    sender.sendall(data)
        for sender in staying:
            sender.sendall(GOOD)
        bruce.await_status(lambda seen: seen.received == 13 and sum(one.open for one in counted(seen)) == 2)
        yield found
        for sender in staying:
            sender.close()


def counted(seen: Any) -> list[Any]:
    """The connections of each input that has some."""
    return [one.connections for one in seen.inputs if one.connections]


def test_status(doors: Served) -> None:
    """By input: messages, endings of connections, and open connections."""
    document = doors.get("/api/v1/status").json()
    check("status", document)
    assert document["inputs"] == [
        {"input": "datagram", "stored": 1, "refused": 1, "connections": None},
        {
            "input": "stream",
            "stored": 4,
            "refused": 3,
            "connections": {"accepted": 5, "open": 1, "closed": {**UNTOLD, **STREAM}, "errors": 0},
        },
        {
            "input": "tcp",
            "stored": 1,
            "refused": 3,
            "connections": {"accepted": 4, "open": 1, "closed": {**UNTOLD, **TCP}, "errors": 0},
        },
    ]
    assert document["discarded"]["unclean"] == 2
    flow = doors.get("/api/v1/flow").json()
    check("flow", flow)
    assert [one["input"] for one in flow["inputs"]] == ["datagram", "stream", "tcp"]


def test_metrics(doors: Served) -> None:
    """The same figures as series."""
    seen = read(doors.get("/metrics").body)

    def value(name: str, **labels: str) -> float:
        return seen[name][frozenset(labels.items())]

    assert value("bruce_input_messages_total", input="stream", event="stored") == 4
    assert value("bruce_input_messages_total", input="tcp", event="refused") == 3
    assert value("bruce_connections_accepted_total", input="stream") == 5
    assert value("bruce_connections_open", input="tcp") == 1
    assert value("bruce_connections_closed_total", input="stream", how="unclean") == 1
    assert value("bruce_connections_closed_total", input="tcp", how="clean") == 0
    assert value("bruce_connection_errors_total", input="tcp") == 0


def test_as_dory(doors: Served) -> None:
    """Under Dory's names; messages that were cut short are in its report of discards, by input.

    Bytes that are no message, such as TLS and HTTP, count as too large there: they read as a large size.
    """
    found = {one["name"]: one["value"] for one in doors.get("/counters/json").json()["counters"]}
    ends = ("CleanDisconnect", "UncleanDisconnect", "InvalidSizeField", "MsgBodyTooLarge", "SocketError")
    assert found["UnixDgInputAgentForwardMsg"] == 1
    for client, prefix, stored, accepted, ended in (
        ("Unix", "UnixStreamInput", 4, 5, (1, 1, 1, 1, 0)),
        ("Tcp", "TcpInput", 1, 4, (0, 1, 0, 2, 0)),
    ):
        assert (found[f"New{client}Client"], found[f"{prefix}ForwardMsg"]) == (accepted, stored)
        assert tuple(found[prefix + end] for end in ends) == ended

    def report() -> dict[str, Any]:
        document: dict[str, Any] = doors.get("/discards/json").json()["unfinished_report"]
        return document

    # The figures by sender come a second later, and the server caches an answer for some seconds.
    doors.bruce.await_true(lambda: report()["tcp_unclean_disconnect_count"] == 1)
    assert report()["unix_stream_unclean_disconnect_count"] == 1
    assert len(report()["unix_stream_unclean_disconnect"]) == 2


@pytest.mark.long
def test_page(doors: Served) -> None:
    """The page names each input, and says how many are connected."""
    with Browser(demand_browser()) as browser:
        browser.show(doors.url)
        browser.await_text(lambda text: text.split().count("connected") == 2 and "TCP" in text, "#inputs")
        assert browser.complaints == []
