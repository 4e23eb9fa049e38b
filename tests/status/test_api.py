"""The API of the status page: of the shape that its schema says, and the figures of `brucectl`."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dispatch.embedded import EmbeddedKafka
from spool.wire import encode
from tests.daemon import RunningBruce, halt
from tests.status.conftest import EVIL, SECRET, Served, serve

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "status/schema.json").read_text())
PATHS = ("status", "flow", "history", "discards")


def check(name: str, document: Any) -> None:
    """A document is what the schema says of its name."""
    Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{name}"}).validate(document)


@pytest.mark.parametrize("name", PATHS)
def test_shape(served: Served, name: str) -> None:
    """Each answer is JSON of the shape that /api/v1/schema says, whose every field is asked for there."""
    assert served.get("/api/v1/schema").json() == SCHEMA
    answer = served.get(f"/api/v1/{name}")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    check(name, answer.json())
    with pytest.raises(Exception, match="was unexpected"):
        check(name, {**answer.json(), "more": 1})


def test_figures(served: Served) -> None:
    """The figures are those of `brucectl status --json` and of `brucectl discards --json`."""
    status = served.get("/api/v1/status").json()
    theirs = json.loads(served.bruce.brucectl("status", "--json").stdout)
    assert list(status) == list(theirs)
    for name in ("watermarks", "received", "delivered", "discarded", "backlog", "workers"):
        assert status[name] == theirs[name]
    assert (status["received"], status["delivered"]) == (43, 40)
    assert [worker["role"] for worker in status["workers"]][-1] == "status"
    # They are told from the first sync of their table on, and the server keeps an answer for some seconds.
    served.bruce.await_true(lambda: bool(served.get("/api/v1/discards").json()["senders"]))
    discards = served.get("/api/v1/discards").json()
    assert discards == json.loads(served.bruce.brucectl("discards", "--json", "--samples", 5).stdout)
    assert {row["topic"] for row in discards["discards"]} == {None, EVIL.decode()}


def test_probes(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Ready and alive, with Kafka away, too; when the intake stands, neither."""
    bruce, port = serve(tmp_path, kafka, {"kafka": {"bootstrap.servers": "127.0.0.1:1"}})
    with bruce:
        served = Served(bruce, port)
        bruce.await_true(served.answers)
        assert served.get("/healthz").body == served.get("/readyz").body == b"ok\n"
        # The supervisor reaps and restarts nobody while it is stopped itself.
        ingest = next(worker.pid for worker in bruce.status().workers if worker.role == "ingest")
        halt(bruce.pid)
        try:
            os.kill(ingest, signal.SIGKILL)
            bruce.await_true(lambda: served.get("/readyz").status == 503)
            answers = [served.get(path) for path in ("/healthz", "/readyz")]
        finally:
            os.kill(bruce.pid, signal.SIGCONT)
        assert [answer.status for answer in answers] == [503, 503]
        assert {answer.body for answer in answers} == {b"the ingest worker is not running\n"}
        bruce.await_true(lambda: served.get("/healthz").status == 200)


def test_stream(served: Served) -> None:
    """Server-sent events: status, flow and history, of their shapes, again and again."""
    with socket.create_connection(("127.0.0.1", served.port), 60) as tcp, tcp.makefile("rb") as lines:
        tcp.sendall(b"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        events = []
        name = ""
        while len(events) < 6:
            line = lines.readline()
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                check(name, json.loads(line[6:]))
                events.append(name)
    assert events == ["status", "flow", "history"] * 2


def test_unknown(served: Served) -> None:
    """Another path is not there, another method neither; nothing tells which server this is."""
    assert served.get("/nothing").status == 404
    assert served.get("/server_info/").status == 404
    assert "Server" not in served.get("/").headers


@pytest.mark.parametrize("name", ["evil.example", "evil.example:9090"])
def test_rebinding(served: Served, name: str) -> None:
    """A page of another site that leads its own name here sees nothing."""
    assert served.get("/api/v1/status", {"Host": name}).status == 403
    assert served.get("/", {"Host": "localhost"}).status == 200


def test_secrets(served: Served) -> None:
    """What stands in [kafka] is on no path, and in no process's arguments or log."""
    for path in ("/", "/metrics", "/api/v1/schema", *(f"/api/v1/{name}" for name in PATHS)):
        assert SECRET.encode() not in served.get(path).body
    assert SECRET not in served.bruce.log.read_text()


def test_a_crash_matters_to_nobody(served: Served) -> None:
    """SIGKILL of the status worker: it is back, with the history it had; the others are who they were."""
    before = served.bruce.await_status(
        lambda s: s.workers[-1].role == "status" and len(served.get("/api/v1/history").json()["points"]) > 0
    )
    points = served.get("/api/v1/history").json()["points"]
    os.kill(before.workers[-1].pid, signal.SIGKILL)
    after = served.bruce.await_status(lambda s: s.workers[-1].restarts > before.workers[-1].restarts)
    assert after.workers[:-1] == before.workers[:-1]
    served.bruce.await_true(served.answers)
    again = served.get("/api/v1/history").json()["points"]
    assert [point[1:4] for point in again[: len(points)]] == [point[1:4] for point in points]


def test_a_port_that_is_taken(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Messages are taken in and delivered without a page; it is there when the port is free."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        bruce = RunningBruce(tmp_path, kafka.bootstrap_servers, settings={"status": {"port": port}})
        bruce.start()
        try:
            bruce.send([encode(b"t", b"v")])
            bruce.await_status(lambda s: s.delivered == 1)
            bruce.await_true(
                lambda: bruce.logged(f"no status page on 127.0.0.1 port {port}: it is taken") == 1
            )
            holder.close()
            bruce.await_true(Served(bruce, port).answers)
            assert next(w.restarts for w in bruce.status().workers if w.role == "status") == 0
        finally:
            bruce.close()
