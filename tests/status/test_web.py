"""The server when its figures are not available."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from unittest import mock

import pytest
from tornado.netutil import bind_sockets

from status.access import NothingToTell, StatusOptions, open_access
from status.clients import Clients
from status.web import CachedFigures, Source, _Listener, application


def ask(path: str, error: Exception) -> tuple[int, str]:
    """(status, body) of an answer for which every look at the spool raises."""
    source = mock.Mock(spec=Source)
    source.figures.side_effect = error

    def get(port: int) -> tuple[int, str]:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60)
        return refused.value.code, refused.value.read().decode()

    async def serve() -> tuple[int, str]:
        clients, sockets = Clients(), bind_sockets(0, "127.0.0.1")
        server = _Listener(application(open_access(StatusOptions()), CachedFigures(source), clients))
        server.clients = clients
        server.add_sockets(sockets)
        try:
            return await asyncio.to_thread(get, sockets[0].getsockname()[1])
        finally:
            server.stop()

    return asyncio.run(serve())


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/status", "/api/v1/flow"])
def test_a_defect_is_logged_with_its_traceback(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """The client gets no details of a defect; the log has the path and the traceback."""
    code, body = ask(path, ZeroDivisionError("a defect of ours"))
    assert (code, body) == (500, '{"error": "Internal Server Error"}\n')
    logged = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [str(record.exc_info[1]) for record in logged if record.exc_info] == ["a defect of ours"]
    assert path in logged[0].getMessage()


def test_a_spool_that_cannot_be_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    """The client and the log get the reason, in one sentence."""
    assert ask("/metrics", NothingToTell("the spool is gone")) == (503, '{"error": "the spool is gone"}\n')
    assert [record.getMessage() for record in caplog.records if record.name == "bruce.status"] == [
        "/metrics cannot be answered: the spool is gone"
    ]
