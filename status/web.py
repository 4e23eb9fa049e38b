"""The HTTP server of the status worker, on Tornado.

    /                    the page                       /metrics       for Prometheus
    /healthz /readyz     for probes, without a token    /api/v1/...    JSON; /api/v1/schema tells its shape
    /counters/json ...   the paths of Dory, see status.dory

HEAD answers as GET, without the body.

Nothing here changes anything but POST /metadata_update, which has Kafka asked for its metadata; so a request
that is forged in a browser does nothing. Without a token the server answers only to names of this host.

The page is page.html with page.css and page.js inside; its policy lets no other script run. It shows the
host's own name, since a browser behind a tunnel has called it localhost.

Figures are cached: one look at a time, in a thread of its own, whose result answers all requests meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import html
import json
import logging
import math
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tornado.http1connection import HTTP1Connection, HTTP1ServerConnection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.iostream import IOStream, StreamClosedError
from tornado.web import Application, RequestHandler

from spool.words import REASONS
from status import dory
from status.access import BEAT_S, Access, NothingToTell
from status.clients import MOST_LOOKING, Clients
from status.dory import DiscardReports
from status.figures import Figures, release
from status.health import Health
from status.metrics import CONTENT_TYPE, exposition

log = logging.getLogger("bruce.status")

EACH_S = 1.0
"""Between two events of a stream."""
DORY_PATHS = r"/(server_info|counters|queues|discards|metadata_fetch_time)/(plain|json)"
_MOST_REQUEST_BYTES = 32 << 10
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
Found = TypeVar("Found")
FRESH_S = 0.9
"""A result is used for so long: a client that asks each second gets a new one."""
DISCARDS_FRESH_S = 5.0
"""Longer, since a list of discards reads frames of the log."""


class _Listener(HTTPServer):
    """Accepts only as many connections as it has descriptors for: without one it would spin."""

    clients: Clients

    def handle_stream(self, stream: IOStream, address: tuple[str, int]) -> None:
        self.clients.admit(stream, address[0])
        super().handle_stream(stream, address)

    def on_close(self, server_conn: object) -> None:
        assert isinstance(server_conn, HTTP1ServerConnection)
        self.clients.leave(server_conn.stream)
        super().on_close(server_conn)


class Server:
    """The status worker's server."""

    def __init__(self, access: Access, source: Source, clients: Clients | None = None) -> None:
        """`clients`: with other bounds than the usual ones."""
        self._access, self._source = access, source
        self._clients = clients or Clients()

    def run(self, listener: socket.socket, end: int, beat: Callable[[], None]) -> None:
        """Serve the clients of a listening socket until the signal `end` comes.

        `beat` is called every BEAT_S.
        """
        # Requests for unknown paths do not belong in the log.
        logging.getLogger("tornado.access").setLevel(logging.ERROR)
        logging.getLogger("tornado.general").setLevel(logging.ERROR)
        asyncio.run(self._serve(listener, end, beat))

    async def _serve(self, listener: socket.socket, end: int, beat: Callable[[], None]) -> None:
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(end, told.set)
        cached, clients = CachedFigures(self._source), self._clients
        beginning, beating = asyncio.create_task(cached.begin()), asyncio.create_task(_beat(beat))
        server = _Listener(
            application(self._access, cached, clients),
            ssl_options=self._access.tls,
            idle_connection_timeout=clients.patience_s,
            body_timeout=clients.patience_s,
            max_buffer_size=_MOST_REQUEST_BYTES,
            max_header_size=_MOST_REQUEST_BYTES // 2,
            max_body_size=1 << 10,
        )
        server.clients = clients
        # A client that acknowledges no data is gone: free its socket, and the data that waits there.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * clients.patience_s))
        server.add_sockets([listener])
        await told.wait()
        beginning.cancel()
        beating.cancel()


async def _beat(beat: Callable[[], None]) -> None:
    while True:
        beat()
        await asyncio.sleep(BEAT_S)


def application(access: Access, cached: CachedFigures, clients: Clients) -> Application:
    """The application with all its paths."""
    shared = {"access": access, "cached": cached, "clients": clients}
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
            (r"/api/v1/witness", Verdicts, shared),
            (DORY_PATHS, Dory, shared),
            (r"/(?:sys/)?metadata_update", MetadataUpdate, shared),
            (r"/msg_debug(/.*)?", MessageDebug, shared),
            (r"/api/v1/stream", Stream, shared),
        ],
        default_handler_class=Unknown,
        default_handler_args=shared,
    )


class Handler(RequestHandler):
    """The base of all paths: access, limits, and the answer when the spool cannot be read."""

    def initialize(
        self, access: Access, cached: CachedFigures, clients: Clients, *, guarded: bool = True
    ) -> None:
        self._access, self.cached, self.clients, self._guarded = access, cached, clients, guarded
        self.stream = stream_of(self.request)

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in _HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> None:
        self.clients.ask(self.stream)
        if self._guarded and not self._access.admits(
            self.request.headers.get("Authorization", ""), self.request.host_name
        ):
            self._turn_away()

    def head(self, *names: str) -> Awaitable[None] | None:
        # Tornado sends no body, and says how long it would be.
        return self.get(*names)

    def finish(self, chunk: str | bytes | None = None) -> asyncio.Future[None]:  # type: ignore[override]
        answer = chunk.encode() if isinstance(chunk, str) else chunk or b""
        self.clients.answer(self.stream, len(answer))
        read = super().finish(answer)
        read.add_done_callback(lambda _: self.clients.rest(self.stream))
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
        # Tornado asks for an answer to every exception; for a defect the log has the traceback.
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
    """The page: all of it in one answer; it requests only the stream and the discards."""

    def get(self) -> None:
        page = compose_page()
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", page.policy)
        self.finish(page.html)


class Alive(Handler):
    """/healthz: whether all processes run."""

    def get(self) -> None:
        self.answer(self.cached.health().not_alive())

    def answer(self, reasons: list[str]) -> None:
        """200, or 503 with the reasons."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_status(503 if reasons else 200)
        self.finish("".join(f"{reason}\n" for reason in reasons) or "ok\n")


class Ready(Alive):
    """/readyz: whether messages are taken in."""

    def get(self) -> None:
        self.answer(self.cached.health().not_ready())


class Metrics(Handler):
    """For Prometheus."""

    async def get(self) -> None:
        figures = await self.cached.figures.get()
        self.set_header("Content-Type", CONTENT_TYPE)
        self.finish(exposition(figures, self.cached.health()))


class Schema(Handler):
    """The JSON schema of the API."""

    def get(self) -> None:
        self.set_header("Content-Type", "application/schema+json")
        self.finish((files("status") / "schema.json").read_text(encoding="utf-8"))


class Status(Handler):
    """As `brucectl status --json`."""

    async def get(self) -> None:
        self.finish_json((await self.cached.figures.get()).status())


class Flow(Handler):
    """Rates at this moment."""

    async def get(self) -> None:
        self.finish_json((await self.cached.figures.get()).flow())


class History(Handler):
    """The last hour."""

    async def get(self) -> None:
        self.finish_json((await self.cached.figures.get()).history())


class Discards(Handler):
    """As `brucectl discards --json`."""

    async def get(self) -> None:
        self.finish_json(await self.cached.discards.get())


class Verdicts(Handler):
    """The verdict of the witness on each spool."""

    async def get(self) -> None:
        document = (await self.cached.figures.get()).witness()
        if document is None:
            self.refuse(404, "no witness is shown here: [witness] directory names none")
        else:
            self.finish_json(document)


class Dory(Handler):
    """The answers of Dory's status server."""

    async def get(self, what: str, form: str) -> None:
        document = self._head() | await self._tell(what)
        if form == "json":
            self.finish_json(document)
        else:
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.finish(dory.as_plain(document))

    def _head(self) -> dict[str, Any]:
        health = self.cached.health()
        pid = health.workers[0].pid if health.workers else 0
        return dory.server_info(pid, release(), health.started_ns // 10**9)

    async def _tell(self, what: str) -> dict[str, Any]:
        if what == "counters":
            return {"counters": dory.counters(await self.cached.figures.get())}
        if what == "queues":
            return dory.queues(await self.cached.figures.get())
        if what == "metadata_fetch_time":
            return dory.metadata_fetch_time(await self.cached.figures.get())
        return await self.cached.report() if what == "discards" else {}


class MetadataUpdate(Handler):
    """Asks Kafka for its metadata now, as Dory did, without waiting for the answer."""

    def post(self) -> None:
        if "Origin" in self.request.headers:
            self.refuse(403, "a page in a browser has no business here")
            return
        self.cached.refresh_metadata()
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish("metadata update requested; /metadata_fetch_time tells when it came\n")


class MessageDebug(Handler):
    """A tracing request of Dory's, which is refused."""

    def prepare(self) -> None:
        super().prepare()
        if not self._finished:
            self.refuse(404, "`brucectl trace` follows single messages; see man brucectl-trace")


class Stream(Handler):
    """Server-sent events each second: status, flow, and the new points of the history."""

    async def get(self) -> None:
        if not self.clients.look(self.stream):
            self.refuse(503, f"{MOST_LOOKING} pages are open already")
            return
        self.set_header("Content-Type", "text/event-stream")
        # The client is gone, or the server ends: no answer is needed.
        with contextlib.suppress(StreamClosedError, TimeoutError, asyncio.CancelledError):
            await self._send_for_ever()

    def head(self, *_: str) -> None:
        self.set_header("Content-Type", "text/event-stream")
        # Else the answer would have a length.
        self.flush()
        self.finish()

    async def _send_for_ever(self) -> None:
        after = 0.0
        while True:
            try:
                figures = await self.cached.figures.get()
            except NothingToTell as error:
                self._event("failure", {"error": str(error)})
            else:
                self._event("status", figures.status())
                self._event("flow", figures.flow())
                self._event("history", figures.history(after))
                after = max((point.time + 0.1 for point in figures.points), default=after)
            await asyncio.wait_for(self.flush(), self.clients.patience_s)
            await asyncio.sleep(EACH_S)

    def _event(self, name: str, document: Any) -> None:
        self.write(f"event: {name}\ndata: {json.dumps(document, ensure_ascii=False)}\n\n")


class ComposedPage(NamedTuple):
    """The page as it is sent."""

    html: str
    policy: str
    """Its Content-Security-Policy: a script in a topic's name does not run."""


@functools.cache
def compose_page() -> ComposedPage:
    """Put the page together; it contains nothing of a spool."""
    text, style, script = (
        (files("status") / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    script = script.replace("{/* reasons */}", json.dumps(REASONS))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    text = text.replace("/* page.css */", style).replace("/* page.js */", script)
    return ComposedPage(text.replace("<!-- host -->", html.escape(socket.gethostname())), policy)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def stream_of(request: HTTPServerRequest) -> IOStream:
    """The connection of a request."""
    assert isinstance(request.connection, HTTP1Connection)
    return request.connection.stream


class Source(Protocol):
    """The source of the figures. Each call may wait for the disk."""

    def figures(self) -> Figures:
        """A look. Raises NothingToTell."""

    def discards(self) -> dict[str, Any]:
        """The document of `brucectl discards --json`. Raises NothingToTell."""

    def health(self) -> Health:
        """Liveness and readiness, without waiting."""

    def refresh_metadata(self) -> None:
        """Have Kafka's metadata fetched soon. Raises NothingToTell."""


class Cache(Generic[Found]):
    """The newest result of a slow call, which is made only when it is asked for."""

    def __init__(self, take: Callable[[], Found], fresh_s: float) -> None:
        self._take, self._fresh_s = take, fresh_s
        self._thread = ThreadPoolExecutor(1)
        self._begun = 0.0
        self._result: asyncio.Future[Found] | None = None

    async def get(self) -> Found:
        """A result that is fresh. Raises the errors of the call."""
        now = time.monotonic()
        result = self._result
        if result is None or (result.done() and now - self._begun >= self._fresh_s):
            loop = asyncio.get_running_loop()
            self._begun = now
            self._result = result = loop.run_in_executor(self._thread, self._take)
        # The client that asked first may hang up; others still wait for the result.
        return await asyncio.shield(result)

    def forget(self) -> None:
        """Let the next request make a new call."""
        self._begun = -math.inf


class CachedFigures:
    """All figures that the server serves."""

    def __init__(self, source: Source) -> None:
        self.figures = Cache(source.figures, FRESH_S)
        self.discards = Cache(source.discards, DISCARDS_FRESH_S)
        self.health, self.refresh_metadata = source.health, source.refresh_metadata
        self._reports = DiscardReports()

    async def begin(self) -> None:
        """Let the first discard report count from now on, and not from the first request."""
        # When the spool cannot be read now, it begins with the first request.
        with contextlib.suppress(NothingToTell):
            await self.report()
            self.discards.forget()

    async def report(self) -> dict[str, Any]:
        """Discards in the form of Dory's report. Raises NothingToTell."""
        return self._reports.take(await self.discards.get())
