"""The HTTP server of the status worker, on Tornado.

    /                    the page                       /metrics       for Prometheus
    /healthz /readyz     for probes, without a token    /api/v1/...    JSON; /api/v1/schema says of what shape
    /counters/json ...   as Dory had them, see status.dory

Nothing here changes anything but POST /metadata_update, which has Kafka asked for its metadata; so a request
that is forged in a browser does nothing. Without a token only names of this host are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import socket
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.iostream import IOStream, StreamClosedError
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from status import dory
from status.access import Access
from status.crowd import MOST_LOOKING, Crowd
from status.desk import Desk, Source
from status.errors import NothingToTell
from status.metrics import CONTENT_TYPE, exposition
from status.options import StatusOptions
from status.page import compose

log = logging.getLogger("bruce.status")

EACH_S = 1.0
"""Between two events of a stream."""
PATIENCE_S = 30.0
"""For a client to read its answer, and for headers and body of a request to come."""
DORY_PATHS = r"/(server_info|counters|queues|discards|metadata_fetch_time)/(plain|json)"
_BACKLOG = 1024
"""Connections that wait until they are accepted."""
_MOST_REQUEST_BYTES = 32 << 10
_AGAIN_S = 5.0
"""Until a port that is taken is tried again."""
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}


class _Listener(HTTPServer):
    """As many connections as there are surely descriptors for: without any it would spin, and answer none."""

    crowd: Crowd

    def handle_stream(self, stream: IOStream, address: tuple[str, int]) -> None:
        self.crowd.admit(stream, address[0])
        super().handle_stream(stream, address)

    def on_close(self, server_conn: object) -> None:
        assert isinstance(server_conn, HTTP1ServerConnection)
        self.crowd.leave(server_conn.stream)
        super().on_close(server_conn)


class Server:
    """The status worker's server."""

    def __init__(self, options: StatusOptions, access: Access, source: Source) -> None:
        self._options, self._access, self._source = options, access, source

    def run(self, end: int) -> None:
        """Serve until the signal `end` comes."""
        # Whoever asks for what is not there is no matter for the log.
        logging.getLogger("tornado.access").setLevel(logging.ERROR)
        logging.getLogger("tornado.general").setLevel(logging.ERROR)
        asyncio.run(self._serve(end))

    async def _serve(self, end: int) -> None:
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(end, told.set)
        listening = asyncio.create_task(self._listen())
        await asyncio.wait([listening, asyncio.create_task(told.wait())], return_when=asyncio.FIRST_COMPLETED)
        if not told.is_set():
            desk = Desk(self._source)
            beginning = asyncio.create_task(desk.begin())
            crowd = Crowd()
            server = _Listener(
                application(self._access, desk, crowd),
                ssl_options=self._access.tls,
                idle_connection_timeout=PATIENCE_S,
                body_timeout=PATIENCE_S,
                max_buffer_size=_MOST_REQUEST_BYTES,
                max_header_size=_MOST_REQUEST_BYTES // 2,
                max_body_size=1 << 10,
            )
            server.crowd = crowd
            for listener in listening.result():
                # Who takes none of what is sent to him is gone: what waits for him, and his socket, go.
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * PATIENCE_S))
            server.add_sockets(listening.result())
            await told.wait()
            beginning.cancel()

    async def _listen(self) -> list[socket.socket]:
        """The sockets, as soon as they can be had: a port that is taken is no reason to end."""
        host, port = self._options.address, self._options.port
        said = False
        while True:
            try:
                found = bind_sockets(port, host, backlog=_BACKLOG)
            except OSError as error:
                if not said:
                    reason = "it is taken" if error.errno == errno.EADDRINUSE else error.strerror
                    log.warning(
                        "no status page on %s port %d: %s; tried again every %.0f s, see [status] port",
                        host,
                        port,
                        reason,
                        _AGAIN_S,
                    )
                said = True
                await asyncio.sleep(_AGAIN_S)
            else:
                scheme = "https" if self._access.tls else "http"
                log.info("status page on %s://%s:%d/", scheme, f"[{host}]" if ":" in host else host, port)
                return found


def application(access: Access, desk: Desk, crowd: Crowd) -> Application:
    """What is served under which path."""
    shared = {"access": access, "desk": desk, "crowd": crowd}
    open_to_all = {**shared, "guarded": False}
    return Application(
        [
            (r"/", Page, shared),
            (r"/healthz", Alive, open_to_all),
            (r"/readyz", Ready, open_to_all),
            (r"/metrics", Metrics, shared),
            (r"/api/v1/schema", Schema, shared),
            (r"/api/v1/status", Status, shared),
            (r"/api/v1/flow", Flow, shared),
            (r"/api/v1/history", History, shared),
            (r"/api/v1/discards", Discards, shared),
            (DORY_PATHS, Dory, shared),
            (r"/metadata_update", MetadataUpdate, shared),
            (r"/msg_debug(/.*)?", MessageDebug, shared),
            (r"/api/v1/stream", Stream, shared),
        ],
        default_handler_class=Unknown,
        default_handler_args=shared,
    )


class Handler(RequestHandler):
    """What all paths have in common: who may ask, and how it is said that nothing can be told."""

    def initialize(self, access: Access, desk: Desk, crowd: Crowd, *, guarded: bool = True) -> None:
        self._access, self.desk, self.crowd, self._guarded = access, desk, crowd, guarded
        self.stream = stream_of(self.request)

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        self.crowd.ask(self.stream)
        if self._guarded and not self._access.admits(
            self.request.headers.get("Authorization", ""), self.request.host_name
        ):
            self._turn_away()

    def finish(self, chunk: str | bytes | None = None) -> asyncio.Future[None]:  # type: ignore[override]
        answer = chunk.encode() if isinstance(chunk, str) else chunk or b""
        self.crowd.answer(self.stream, len(answer))
        read = super().finish(answer)
        read.add_done_callback(lambda _: self.crowd.rest(self.stream))
        return read

    def _turn_away(self) -> None:
        if self._access.token is None:
            self.refuse(403, "ask by a name of this host, or set [status] token_file")
            return
        self.set_header("WWW-Authenticate", 'Basic realm="bruce", charset="UTF-8"')
        self.add_header("WWW-Authenticate", "Bearer")
        self.refuse(401, "show the token of [status] token_file")

    def refuse(self, code: int, reason: str) -> None:
        """Answer with a sentence, and end."""
        self.set_status(code)
        self.finish_json({"error": reason})

    def finish_json(self, document: Any) -> None:
        """Answer with a document, and end."""
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(document, ensure_ascii=False) + "\n")

    def write_error(self, status_code: int, **about: Any) -> None:
        # Tornado asks for an answer to whatever was raised; of a defect the log has the traceback.
        error = about["exc_info"][1]
        if isinstance(error, NothingToTell):
            self.refuse(503, str(error))
        else:
            self.refuse(status_code, self._reason)

    def log_exception(self, *about: Any) -> None:
        if isinstance(about[1], NothingToTell):
            log.warning("%s cannot be answered: %s", self.request.path, about[1])
        else:
            super().log_exception(*about)


class Unknown(Handler):
    """A path that is not there."""

    def prepare(self) -> None:
        super().prepare()
        if not self._finished:
            self.refuse(404, "there is no such path; / has the page, /api/v1/schema the API")


class Page(Handler):
    """The page: all of it in one answer; it asks for nothing but the stream and the discards."""

    def get(self) -> None:
        page = compose()
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", page.policy)
        self.finish(page.html)


class Alive(Handler):
    """Whether all processes run."""

    def get(self) -> None:
        self.answer(self.desk.vital().ailments())

    def answer(self, reasons: list[str]) -> None:
        """200, or 503 with the reasons."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_status(503 if reasons else 200)
        self.finish("".join(f"{reason}\n" for reason in reasons) or "ok\n")


class Ready(Alive):
    """Whether messages are taken in."""

    def get(self) -> None:
        self.answer(self.desk.vital().obstacles())


class Metrics(Handler):
    """For Prometheus."""

    async def get(self) -> None:
        figures = await self.desk.figures.get()
        self.set_header("Content-Type", CONTENT_TYPE)
        self.finish(exposition(figures, self.desk.vital()))


class Schema(Handler):
    """The shape of what follows."""

    def get(self) -> None:
        self.set_header("Content-Type", "application/schema+json")
        self.finish((files("status") / "schema.json").read_text(encoding="utf-8"))


class Status(Handler):
    """As `brucectl status --json`."""

    async def get(self) -> None:
        self.finish_json((await self.desk.figures.get()).status())


class Flow(Handler):
    """This moment."""

    async def get(self) -> None:
        self.finish_json((await self.desk.figures.get()).flow())


class History(Handler):
    """The last hour."""

    async def get(self) -> None:
        self.finish_json((await self.desk.figures.get()).history())


class Discards(Handler):
    """As `brucectl discards --json`."""

    async def get(self) -> None:
        self.finish_json(await self.desk.discards.get())


class Dory(Handler):
    """What Dory told under these paths."""

    async def get(self, what: str, form: str) -> None:
        document = self._head() | await self._tell(what)
        if form == "json":
            self.finish_json(document)
        else:
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(dory.as_plain(document))

    def _head(self) -> dict[str, Any]:
        vital = self.desk.vital()
        pid = vital.workers[0].pid if vital.workers else 0
        return dory.server_info(pid, version("bruce-spool"), vital.started_ns // 10**9)

    async def _tell(self, what: str) -> dict[str, Any]:
        if what == "counters":
            return {"counters": dory.counters(await self.desk.figures.get())}
        if what == "queues":
            return dory.queues(await self.desk.figures.get())
        if what == "metadata_fetch_time":
            return dory.metadata_fetch_time(await self.desk.figures.get())
        return await self.desk.report() if what == "discards" else {}


class MetadataUpdate(Handler):
    """Asks Kafka for its metadata now, as Dory did; the answer is not waited for."""

    def post(self) -> None:
        if "Origin" in self.request.headers:
            self.refuse(403, "a page in a browser has no business here")
            return
        self.desk.refresh_metadata()
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish("metadata update requested; /metadata_fetch_time tells when it came\n")


class MessageDebug(Handler):
    """What Dory started by a GET."""

    def prepare(self) -> None:
        super().prepare()
        if not self._finished:
            self.refuse(404, "`brucectl trace` follows single messages; see man brucectl-trace")


class Stream(Handler):
    """Server-sent events: what the three above tell, each second; of the history what is new."""

    async def get(self) -> None:
        if not self.crowd.look(self.stream):
            self.refuse(503, f"{MOST_LOOKING} pages are open already")
            return
        self.set_header("Content-Type", "text/event-stream")
        # A client that is gone, or our own end: there is nothing to answer any more.
        with contextlib.suppress(StreamClosedError, TimeoutError, asyncio.CancelledError):
            await self._send_for_ever()

    async def _send_for_ever(self) -> None:
        after = 0.0
        while True:
            try:
                figures = await self.desk.figures.get()
            except NothingToTell as error:
                self._event("failure", {"error": str(error)})
            else:
                self._event("status", figures.status())
                self._event("flow", figures.flow())
                self._event("history", figures.history(after))
                after = max((point.time + 0.1 for point in figures.points), default=after)
            await asyncio.wait_for(self.flush(), PATIENCE_S)
            await asyncio.sleep(EACH_S)

    def _event(self, name: str, document: Any) -> None:
        self.write(f"event: {name}\ndata: {json.dumps(document, ensure_ascii=False)}\n\n")


def stream_of(request: HTTPServerRequest) -> IOStream:
    """The connection that a request came by."""
    assert isinstance(request.connection, HTTP1Connection)
    return request.connection.stream
