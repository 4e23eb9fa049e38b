"""Handing datagrams to a daemon, large ones and with an end, against sockets that play it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli.again import Again
from cli.config import IngestOptions
from cli.errors import BadArgument, CliError
from cli.sending import send_all
from ingest.inputs import DATAGRAM, STREAM, TCP, Input
from spool.discard_file import DiscardFile, GivenUp
from spool.files import Span
from spool.wire import Reason, encode

LARGE = encode(b"t", b"x" * 100_000)
SMALL = [encode(b"t", b"%d" % number) for number in range(3)]


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A datagram socket and a listening stream socket."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as streams,
    ):
        datagrams.bind(str(tmp_path / "datagrams"))
        streams.bind(str(tmp_path / "streams"))
        streams.listen()
        for one in (datagrams, streams):
            one.settimeout(60)
        yield datagrams, streams


def test_a_large_one_goes_by_stream(tmp_path: Path, doors: tuple[socket.socket, socket.socket]) -> None:
    """In its turn: when those before it were read, and those after it when it was stored."""
    datagrams, streams = doors
    sent: list[int] = []
    messages = [SMALL[0], LARGE, SMALL[1]]

    def send() -> None:
        sent.append(send_all(tmp_path / "datagrams", messages, str(tmp_path / "streams")))

    sender = threading.Thread(target=send)
    sender.start()
    streams.settimeout(0.2)
    with pytest.raises(TimeoutError):
        streams.accept()
    assert datagrams.recv(1 << 16) == SMALL[0]
    streams.settimeout(60)
    connection, _ = streams.accept()
    with connection, connection.makefile("rb") as stream:
        assert stream.read() == LARGE
        datagrams.settimeout(0.2)
        with pytest.raises(TimeoutError):
            datagrams.recv(1)
    datagrams.settimeout(60)
    assert datagrams.recv(1 << 16) == SMALL[1]
    sender.join()
    assert sent == [3]


def test_a_large_one_without_a_stream(
    tmp_path: Path, doors: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, and what would have to be configured; a daemon that does not take it is told, too."""
    with pytest.raises(BadArgument, match=r"takes 100029 bytes; .* no \[ingest\] stream_socket or tcp_port"):
        send_all(tmp_path / "datagrams", [LARGE])
    monkeypatch.setattr("cli.sending.STORED_S", 0)
    with pytest.raises(CliError, match="nobody listens at"):
        send_all(tmp_path / "datagrams", [LARGE], str(tmp_path / "nobody"))


def test_where_a_stream_goes() -> None:
    """To the first place that is configured, a path or a port."""
    options = IngestOptions(Path("/d"))
    more = (Input(DATAGRAM, Path("/e")), Input(STREAM, Path("/f")))
    assert options.stream_address is None
    assert replace(options, inputs=more).stream_address == "/f"
    assert replace(options, inputs=(Input(TCP, 7),)).stream_address == ("127.0.0.1", 7)
    assert replace(options, tcp_port=8, inputs=more).stream_address == ("127.0.0.1", 8)
    assert replace(options, tcp_port=8, stream_socket=Path("/s")).stream_address == "/s"


def test_the_time_is_over(tmp_path: Path, doors: tuple[socket.socket, socket.socket]) -> None:
    """A daemon that takes nothing holds nobody up beyond it; what is left, and from when on, is told."""
    datagrams, _ = doors
    path = tmp_path / "discards"
    spool = bytes(16)
    given_up = [
        GivenUp(spool, number, Reason.TOO_LARGE, 1_000 + number, encode(b"t", b"%d" % number))
        for number in range(2000)
    ]
    DiscardFile(path, 1 << 30).append(given_up)
    result = Again(path, Span(), None).send(tmp_path / "datagrams", None, lambda *_: None, 0.5)
    assert result.sent < result.messages == 2000
    assert result.resume_from == 1_000 + result.sent
    received = [datagrams.recv(1 << 16) for _ in range(result.sent)]
    assert received == [one.datagram for one in given_up[: result.sent]]
    rest = Again(path, Span(from_ns=result.resume_from), None).count()
    assert rest.messages == result.left == 2000 - result.sent
