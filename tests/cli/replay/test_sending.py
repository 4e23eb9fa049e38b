"""Sending datagrams to a daemon, also large ones and with a time limit, against sockets in its place."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli.config.settings import IngestOptions
from cli.replay.replay import Resend
from cli.replay.sending import send_all
from cli.terminal.errors import BadArgument, CliError
from ingest.sockets.inputs import DATAGRAM, STREAM, TCP, Input
from spool.format.wire import Reason, encode
from spool.marks.discard_file import DiscardFile, GivenUp
from spool.read.files import Span
from tests.spool.marks.discards import records_of

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
    """In order: after the messages before it were read, and before those after it."""
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


def test_a_large_one_without_a_stream(tmp_path: Path, doors: tuple[socket.socket, socket.socket]) -> None:
    """The error names the message and the missing setting; a daemon that does not listen is an error, too."""
    with pytest.raises(BadArgument, match=r"takes 100029 bytes; .* no \[ingest\] stream_socket or tcp_port"):
        send_all(tmp_path / "datagrams", [LARGE])
    with pytest.raises(CliError, match="no program listens at"):
        send_all(tmp_path / "datagrams", [LARGE], str(tmp_path / "nobody"), stored_s=0)


def test_one_that_the_daemon_would_discard(
    tmp_path: Path, doors: tuple[socket.socket, socket.socket]
) -> None:
    """Beyond max_stream_message_bytes nothing goes out: each try would count as a discard."""
    with pytest.raises(BadArgument, match=r"max_stream_message_bytes is 99999; 1 message before it went out"):
        send_all(tmp_path / "datagrams", [SMALL[0], LARGE], str(tmp_path / "streams"), most_bytes=99_999)
    assert doors[0].recv(1 << 16) == SMALL[0]
    doors[1].settimeout(0)
    with pytest.raises(BlockingIOError):
        doors[1].accept()


def test_where_a_stream_goes() -> None:
    """To the first configured path or port."""
    options = IngestOptions(Path("/d"))
    more = (Input(DATAGRAM, Path("/e")), Input(STREAM, Path("/f")))
    assert options.stream_address is None
    assert replace(options, inputs=more).stream_address == "/f"
    assert replace(options, inputs=(Input(TCP, 7),)).stream_address == ("127.0.0.1", 7)
    assert replace(options, tcp_port=8, inputs=more).stream_address == ("127.0.0.1", 8)
    assert replace(options, tcp_port=8, stream_socket=Path("/s")).stream_address == "/s"


def test_the_time_is_over(tmp_path: Path, doors: tuple[socket.socket, socket.socket]) -> None:
    """A daemon that takes nothing delays it no longer; the result says how many remain, and from when on."""
    datagrams, _ = doors
    path = tmp_path / "discards"
    spool = bytes(16)
    given_up = [
        GivenUp(spool, number, Reason.TOO_LARGE, 1_000 + number, encode(b"t", b"%d" % number))
        for number in range(2000)
    ]
    DiscardFile(path, 1 << 30).append(records_of(given_up))
    result = Resend(path, Span(), None).send(tmp_path / "datagrams", None, lambda *_: None, 0.5)
    assert result.sent < result.messages == 2000
    assert result.resume_from == 1_000 + result.sent
    received = [datagrams.recv(1 << 16) for _ in range(result.sent)]
    assert received == [one.datagram for one in given_up[: result.sent]]
    rest = Resend(path, Span(from_ns=result.resume_from), None).count()
    assert rest.messages == result.left == 2000 - result.sent
