"""`brucectl send`, in a separate process, against a socket in the place of the daemon."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.replay.sending import send_all
from cli.terminal.errors import NobodyListens
from spool.format.wire import encode


def brucectl(*arguments: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[bytes]:
    """Run brucectl to its end."""
    program = [sys.executable, "-c", "from cli.app import brucectl; brucectl()"]
    return subprocess.run(
        [*program, *arguments], input=stdin, capture_output=True, check=False, timeout=60, env=environ
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path on which the daemon would listen."""
    return tmp_path / "bruce.sock"


@pytest.fixture
def daemon(path: Path) -> Iterator[socket.socket]:
    """A socket that listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(60)
        yield receiver


def test_one_message(path: Path, daemon: socket.socket) -> None:
    """Topic, key, partition key, timestamp and value arrive unchanged; nothing is printed."""
    arguments = [
        "--topic",
        "t",
        "--key",
        "k",
        "--partition-key",
        "-5",
        "--timestamp",
        "12",
        "--socket",
        str(path),
    ]
    done = brucectl("send", *arguments, "välue")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    expected = encode(b"t", "välue".encode(), key=b"k", timestamp=12, partition_key=-5)
    assert daemon.recv(65536) == expected


def test_now_is_the_default_time(path: Path, daemon: socket.socket) -> None:
    """Without --timestamp a message carries the time of sending; without --key it has none."""
    before = time.time_ns() // 1_000_000
    assert brucectl("send", "--topic", "t", "--socket", str(path), "v").returncode == 0
    after = time.time_ns() // 1_000_000
    datagram = daemon.recv(65536)
    assert datagram in {encode(b"t", b"v", timestamp=ms) for ms in range(before, after + 1)}


def test_lines(path: Path, daemon: socket.socket) -> None:
    """Each line of standard input is a message without its newline, empty ones and foreign bytes too."""
    stdin = b"one\n\n\xff two\r\nlast"
    done = brucectl("send", "--topic", "t", "--timestamp", "0", "--lines", "--socket", str(path), stdin=stdin)
    assert done.returncode == 0
    received = [daemon.recv(65536) for _ in range(4)]
    assert received == [encode(b"t", value) for value in (b"one", b"", b"\xff two\r", b"last")]


def test_standard_input_is_a_value(path: Path, daemon: socket.socket) -> None:
    """A value of - is all of standard input, newlines included."""
    arguments = ["--topic", "t", "--timestamp", "0", "--socket", str(path)]
    assert brucectl("send", *arguments, "-", stdin=b"one\ntwo\n").returncode == 0
    assert daemon.recv(65536) == encode(b"t", b"one\ntwo\n")


def test_a_socket_that_is_the_configured_one(path: Path, daemon: socket.socket) -> None:
    """Its configured stream counts with --socket, too; that of another daemon does not."""
    configured = {
        "BRUCE_INGEST_DATAGRAM_SOCKET": str(path),
        "BRUCE_INGEST_STREAM_SOCKET": str(path.with_name("stream")),
        "BRUCE_INGEST_MAX_STREAM_MESSAGE_BYTES": "70000",
        "BRUCE_KAFKA_BOOTSTRAP_SERVERS": "localhost:9092",
    }
    large = b"x" * 100_000
    same = brucectl("send", "--topic", "t", "--socket", str(path), "-", stdin=large, **configured)
    assert (same.returncode, b"max_stream_message_bytes is 70000\n" in same.stderr) == (2, True)
    other = path.with_name("other")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(other))
        refused = brucectl("send", "--topic", "t", "--socket", str(other), "-", stdin=large, **configured)
    assert refused.returncode == 2
    assert b"--socket is not the configured one, whose stream may be another daemon's" in refused.stderr


def test_configured_socket(path: Path, daemon: socket.socket) -> None:
    """Without --socket, the configured one is used."""
    done = brucectl(
        "send",
        "--topic",
        "t",
        "v",
        BRUCE_INGEST_DATAGRAM_SOCKET=str(path),
        BRUCE_KAFKA_BOOTSTRAP_SERVERS="localhost:9092",
    )
    assert done.returncode == 0
    assert daemon.recv(65536)


def test_nobody_listens(path: Path) -> None:
    """No socket, or a socket without a daemon behind it: one sentence, exit code 3."""
    missing = brucectl("send", "--topic", "t", "--socket", str(path), "v")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
    stale = brucectl("send", "--topic", "t", "--socket", str(path), "v")
    for done, reason in ((missing, "No such file or directory"), (stale, "Connection refused")):
        expected = f"cannot reach bruce on {path}: {reason}; is `bruce run` up?\n"
        assert (done.returncode, done.stdout, done.stderr.decode()) == (3, b"", expected)


@pytest.mark.parametrize(
    ("arguments", "stdin", "reason"),
    [
        ([], b"", "give either a VALUE or --null-value, or --lines"),
        (["v", "--lines"], b"", "give either a VALUE or --null-value, or --lines"),
        (
            ["v", "--partition-key", str(1 << 31)],
            b"",
            "a timestamp is a number of 64 bits, a partition or a partition key one of 32",
        ),
        (["v", "--partition", "-1"], b"", "brucectl send: Invalid value for '--partition'"),
        (["--lines"], b"x" * 65536, "the message takes 65565 bytes; a datagram has 65536"),
    ],
)
def test_bad_usage(
    path: Path, daemon: socket.socket, arguments: list[str], stdin: bytes, reason: str
) -> None:
    """Input that cannot become a message is one sentence, exit code 2, and nothing is sent."""
    done = brucectl("send", "--topic", "t", "--socket", str(path), *arguments, stdin=stdin)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(reason)
    assert done.stderr.count(b"\n") == 1
    daemon.settimeout(0)
    with pytest.raises(BlockingIOError):
        daemon.recv(1)


def test_a_topic_without_a_name(path: Path, daemon: socket.socket) -> None:
    """The limits of the wire format are reported, and nothing is sent."""
    done = brucectl("send", "--topic", "", "--socket", str(path), "v")
    assert (done.returncode, done.stderr) == (2, b"no message for topic '': a topic has 1 to 32767 bytes\n")


def test_a_bad_configuration(path: Path) -> None:
    """A wrong setting is one line, exit code 2."""
    done = brucectl("send", "--topic", "t", "v", BRUCE_SPOOL_MAX_BYTES="x")
    assert done.returncode == 2
    assert done.stderr.startswith(b"BRUCE_SPOOL_MAX_BYTES: [spool] max_bytes")


def test_it_waits_for_room(path: Path, daemon: socket.socket) -> None:
    """When the socket's queue is full the sender waits, and loses nothing."""
    datagrams = [encode(b"t", str(number).encode()) for number in range(2000)]
    sender = threading.Thread(target=send_all, args=(path, datagrams))
    sender.start()
    received = [daemon.recv(65536) for _ in datagrams]
    sender.join(60)
    assert received == datagrams


def test_a_daemon_that_dies_meanwhile(path: Path) -> None:
    """The error says how many messages the daemon had taken."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(path))

    def datagrams() -> Iterator[bytes]:
        yield b"first"
        yield b"second"
        receiver.close()
        yield b"third"

    with pytest.raises(NobodyListens, match="after 2 messages") as lost:
        send_all(path, datagrams())
    assert lost.value.sent == 2
