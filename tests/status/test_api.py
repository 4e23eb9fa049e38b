"""The API of the status page: the shape that its schema gives, and the figures of `brucectl`."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.daemon import PATIENCE_S, RunningBruce, free_port, halt
from tests.status.conftest import EVIL, SECRET, Served, serve
from tests.status.test_witness import OTHER, spool, tier, write

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "status/schema.json").read_text())
PATHS = ("status", "flow", "history", "discards", "witness")
CHANGING = ("Date", "Etag", "Connection", "Content-Length")
"""Headers that differ from answer to answer; urllib asks for one connection each."""


def check(name: str, document: Any) -> None:
    """Check a document against the schema of its name."""
    Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{name}"}).validate(document)


@pytest.mark.parametrize("name", PATHS)
def test_shape(served: Served, name: str) -> None:
    """Each answer is JSON of the shape in /api/v1/schema, and every field of that schema occurs."""
    assert served.get("/api/v1/schema").json() == SCHEMA
    answer = served.get(f"/api/v1/{name}")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    check(name, answer.json())
    with pytest.raises(Exception, match="was unexpected"):
        check(name, {**answer.json(), "more": 1})


def test_figures(served: Served) -> None:
    """The figures equal those of `brucectl status --json` and of `brucectl discards --json`."""
    status = served.get("/api/v1/status").json()
    theirs = json.loads(served.bruce.brucectl("status", "--json").stdout)
    assert list(status) == list(theirs)
    for name in ("watermarks", "received", "delivered", "discarded", "backlog", "workers"):
        assert status[name] == theirs[name]
    assert (status["received"], status["delivered"]) == (43, 40)
    assert [worker["role"] for worker in status["workers"]][-1] == "status"
    # They are published from the first sync of their table on, and the server caches an answer for seconds.
    served.bruce.await_true(lambda: bool(served.get("/api/v1/discards").json()["senders"]))
    discards = served.get("/api/v1/discards").json()
    assert discards == json.loads(served.bruce.brucectl("discards", "--json", "--samples", 5).stdout)
    assert {row["topic"] for row in discards["discards"]} == {None, EVIL.decode()}


def test_the_witness(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """404 where none is configured; after a reload its verdict, by spool, and in `status` by tier.

    A loss makes the spool unhealthy, and neither the process nor its intake.
    """
    bruce, port = serve(tmp_path, kafka)
    with bruce:
        served = Served(bruce, port)
        bruce.await_true(served.answers)
        assert served.get("/api/v1/witness").status == 404
        assert served.get("/api/v1/status").json()["witness"] is None
        write(tmp_path / "witness", tier("main", spool(), spool(OTHER, "beta", missing=2)))
        bruce.configure({"witness": {"directory": str(tmp_path / "witness")}})
        os.kill(bruce.pid, signal.SIGHUP)

        def answer() -> Any:
            # While the worker is replaced, there is no answer.
            with contextlib.suppress(OSError):
                return served.get("/api/v1/witness")
            return None

        bruce.await_true(lambda: (found := answer()) is not None and found.status == 200)
        document = answer().json()
        check("witness", document)
        (found,) = document["tiers"]
        assert [(one["host"], one["verdict"]) for one in found["spools"]] == [
            ("alpha", "complete"),
            ("beta", "2 missing"),
        ]
        status = served.get("/api/v1/status").json()
        check("status", status)
        assert [(one["spools"], one["judged"], one["verdict"]) for one in status["witness"]["tiers"]] == [
            (2, 80, "2 missing")
        ]
        assert [one["condition"] for one in status["unhealthy"]] == ["witness"]
        theirs = json.loads(served.bruce.brucectl("status", "--json").stdout)
        assert theirs["witness"] == status["witness"]
        assert [served.get(path).status for path in ("/healthz", "/readyz")] == [200, 200]
        assert b'bruce_unhealthy{condition="witness"} 1.0' in served.get("/metrics").body


def test_probes(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Ready and alive, also without Kafka; neither while the intake is stopped."""
    bruce, port = serve(tmp_path, kafka, {"kafka": {"bootstrap.servers": "127.0.0.1:1"}})
    with bruce:
        served = Served(bruce, port)
        bruce.await_true(served.answers)
        assert served.get("/healthz").body == served.get("/readyz").body == b"ok\n"
        # The supervisor neither reaps nor restarts a worker while it is stopped itself.
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


def test_nobody_looks(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """Until a client connects, the status worker has no server: no event loop, and no thread beside it."""
    bruce, port = serve(tmp_path, kafka)
    with bruce:
        bruce.await_true(lambda: bruce.logged("status page on") == 1)
        # The worker may speak before the supervisor has noted it.
        bruce.await_status(lambda seen: any(w.role == "status" for w in seen.workers))
        process = Path(f"/proc/{next(w.pid for w in bruce.status().workers if w.role == 'status')}")

        def loops() -> int:
            found = 0
            for fd in (process / "fd").iterdir():
                # That of the connection may be closed meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    found += "eventpoll" in str(fd.readlink())
            return found

        assert (loops(), len(list((process / "task").iterdir()))) == (0, 1)
        assert Served(bruce, port).get("/healthz").status == 200
        assert loops() == 1


def test_inputs(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The inputs that are configured, and after a reload one more; no other."""
    stream = {"ingest": {"stream_socket": str(tmp_path / "s"), "max_stream_message_bytes": 100_000}}
    bruce, port = serve(tmp_path, kafka, stream)
    with bruce:
        served = Served(bruce, port)

        def inputs() -> list[str]:
            # While the worker is replaced, there is no answer.
            with contextlib.suppress(OSError):
                return [one["input"] for one in served.get("/api/v1/flow").json()["inputs"]]
            return []

        bruce.await_true(served.answers)
        assert inputs() == ["datagram", "stream"]
        with bruce.config.open("a") as file:
            file.write(f"\n[[input]]\ntcp = {free_port()}\n")
        os.kill(bruce.pid, signal.SIGHUP)
        bruce.await_true(lambda: inputs() == ["datagram", "stream", "tcp"])


def test_stream(served: Served) -> None:
    """Server-sent events: status, flow and history, each of its shape, repeatedly."""
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
    """Other paths and other methods are refused; no answer names the server."""
    assert served.get("/nothing").status == 404
    assert served.get("/server_info/").status == 404
    assert "Server" not in served.get("/").headers


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/metrics",
        "/healthz",
        "/readyz",
        "/nothing",
        "/metadata_update",
        "/server_info/plain",
        "/counters/json",
        "/api/v1/schema",
        "/api/v1/stream",
        *(f"/api/v1/{name}" for name in PATHS),
    ],
)
def test_head(served: Served, path: str) -> None:
    """HEAD is answered as GET is, without the body: as load balancers and `curl -I` ask."""
    # Not `/api/v1/stream` by GET, which never ends.
    stream = path == "/api/v1/stream"
    with_body = None if stream else served.get(path)
    asked = http.client.HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE_S)
    with contextlib.closing(asked):
        asked.request("HEAD", path)
        found = asked.getresponse()
        assert found.read() == b""
        names = {name: value for name, value in found.getheaders() if name not in CHANGING}
        # The connection is in order: another request is answered.
        asked.request("HEAD", "/healthz")
        assert asked.getresponse().status == 200
    if with_body:
        shown = {name: value for name, value in with_body.headers.items() if name not in CHANGING}
        assert (found.status, names) == (with_body.status, shown)
        assert int(found.headers["Content-Length"]) > 0
    else:
        assert (found.status, found.headers["Content-Type"]) == (200, "text/event-stream")


@pytest.mark.parametrize("name", ["evil.example", "evil.example:9090"])
def test_rebinding(served: Served, name: str) -> None:
    """A page of another site that resolves its own name to this server gets nothing."""
    assert served.get("/api/v1/status", {"Host": name}).status == 403
    assert served.get("/", {"Host": "localhost"}).status == 200


def test_secrets(served: Served) -> None:
    """The secrets in [kafka] are on no path, and in no process's arguments or log."""
    for path in ("/", "/metrics", "/api/v1/schema", *(f"/api/v1/{name}" for name in PATHS)):
        assert SECRET.encode() not in served.get(path).body
    assert SECRET not in served.bruce.log.read_text()


def test_a_crash_matters_to_nobody(served: Served) -> None:
    """SIGKILL of the status worker: it restarts, with its former history; the other workers go on."""
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
    """The daemon takes in and delivers messages without a page; the page comes when the port is free."""
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
