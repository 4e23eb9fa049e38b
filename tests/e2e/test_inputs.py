"""Several inputs in a running daemon: added and removed by SIGHUP under load, and handed over by systemd."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.daemon import ROOT, START_S, RunningBruce, _toml, consume, free_port

PARTITIONS = 2
RELOADS = 50


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A broker and a topic."""
    with EmbeddedKafka(brokers=1, topics=[("t", PARTITIONS)]) as running:
        yield running


@pytest.fixture
def bruce(kafka: EmbeddedKafka, tmp_path: Path) -> RunningBruce:
    """A daemon, not started."""
    return RunningBruce(tmp_path, kafka.bootstrap_servers, segment_bytes=4 << 20)


def set_inputs(bruce: RunningBruce, *inputs: str) -> None:
    """Write bruce.toml with these tables."""
    text = _toml(bruce._tables)
    # Not there in halves: it may be read at any time.
    new = bruce.config.with_suffix(".new")
    new.write_text(text + "".join(f"[[input]]\n{one}\n" for one in inputs))
    new.rename(bruce.config)


class Sender(threading.Thread):
    """Sends datagrams to a path until it is refused, or stopped; `sent` are those that were taken."""

    def __init__(self, path: Path | str | tuple[str, int], name: bytes, pause_s: float = 0.0) -> None:
        """`pause_s`: between two messages."""
        super().__init__(daemon=True)
        self.path, self.tag, self.sent, self.over = path, name, list[bytes](), False
        self.pause_s = pause_s
        self.start()

    def run(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(self.path))
            with suppress(BrokenPipeError, ConnectionRefusedError):
                while not self.over:
                    value = b"%s %d" % (self.tag, len(self.sent))
                    sender.send(encode(b"t", value, timestamp=1))
                    self.sent.append(value)
                    time.sleep(self.pause_s)

    def stop(self) -> list[bytes]:
        """End the sender, and return the messages that the daemon took."""
        self.over = True
        self.join(60)
        assert not self.is_alive()
        return self.sent


class Connecting(Sender):
    """Connects for each message; without a listener it tries again."""

    def run(self) -> None:
        while not self.over:
            value = b"%s %d" % (self.tag, len(self.sent))
            with socket.socket(socket.AF_UNIX if isinstance(self.path, str) else socket.AF_INET) as stream:
                try:
                    stream.connect(self.path)
                except (FileNotFoundError, ConnectionRefusedError):
                    continue
                stream.sendall(encode(b"t", value, timestamp=1))
            self.sent.append(value)
            time.sleep(self.pause_s)


def test_inputs_come_and_go_under_load(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """One stays, one goes, one comes, and so does the first stream: every message taken is in Kafka, once."""
    a, b, c, stream = (bruce.runtime / name for name in ("a", "b", "c", "stream"))
    set_inputs(bruce, f'datagram = "{a}"\nmode = "0600"', f'datagram = "{b}"')
    with bruce:
        pid = bruce.pid
        assert (a.stat().st_mode & 0o777, b.stat().st_mode & 0o777) == (0o600, 0o666)
        senders = [
            Sender(path, name, 0.001) for path, name in ((bruce.socket, b"first"), (a, b"a"), (b, b"b"))
        ]
        bruce.await_true(lambda: all(len(one.sent) > 300 for one in senders))
        set_inputs(bruce, f'datagram = "{a}"', f'datagram = "{c}"', f'stream = "{stream}"')
        bruce.tell(signal.SIGHUP)
        senders[2].join(60)
        assert not senders[2].is_alive()
        bruce.await_true(lambda: c.exists() and stream.exists() and not b.exists())
        assert a.stat().st_mode & 0o777 == 0o666
        senders.append(Sender(c, b"c"))
        living = [one for one in senders if one.is_alive()]
        before = {one: len(one.sent) for one in living}
        bruce.await_true(lambda: all(len(one.sent) > before[one] + 300 for one in living))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(stream))
            connection.sendall(encode(b"t", b"streamed", timestamp=1))
        sent = [value for one in senders for value in one.stop()] + [b"streamed"]
        seen = bruce.await_status(lambda s: s.received >= len(sent) and s.backlog == 0)
        assert (seen.received, seen.discarded) == (len(sent), {})
        assert bruce.pid == pid
        found = [record.value() for record in consume(kafka.bootstrap_servers, "t", PARTITIONS, len(sent))]
        assert sorted(filter(None, found)) == sorted(sent)
        assert bruce.stop() == 0
        assert not any(path.exists() for path in (a, b, c, stream, bruce.socket))


def test_a_storm_of_reloads(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """50 times SIGHUP, as fast as it goes, a stream comes and goes, and senders connect: nothing is lost."""
    stays, goes, tcp = bruce.runtime / "stays", bruce.runtime / "goes", free_port()
    always = (f'stream = "{stays}"', f"tcp = {tcp}")
    set_inputs(bruce, *always)
    with bruce:
        addresses = (str(stays), str(goes), ("127.0.0.1", tcp))
        senders = [Connecting(address, b"%d" % number, 0.001) for number, address in enumerate(addresses)]
        bruce.await_true(lambda: bool(senders[0].sent and senders[2].sent))
        for number in range(RELOADS):
            set_inputs(bruce, *always, *([f'stream = "{goes}"'] if number % 2 == 0 else []))
            bruce.tell(signal.SIGHUP)
            if number % 10 == 0:
                # It is there for a moment, now and then; the next ones come while it is being taken away.
                aim = len(senders[1].sent)
                bruce.await_true(lambda aim=aim: len(senders[1].sent) > aim)
        sent = [value for one in senders for value in one.stop()]
        seen = bruce.await_status(lambda s: s.received >= len(sent) and s.backlog == 0)
        assert (seen.received, seen.discarded) == (len(sent), {})
        found = [record.value() for record in consume(kafka.bootstrap_servers, "t", PARTITIONS, len(sent))]
        assert sorted(filter(None, found)) == sorted(sent)


@pytest.mark.long
def test_a_cleaner_takes_the_sockets(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Under load: bruce makes them again, connected senders notice nothing, and no message taken is lost."""
    stream = bruce.runtime / "stream"
    set_inputs(bruce, f'stream = "{stream}"')
    with bruce:
        # The embedded Kafka keeps little.
        senders = [Sender(bruce.socket, b"connected", 0.002), Connecting(str(stream), b"stream", 0.002)]
        bruce.await_true(lambda: all(len(one.sent) > 300 for one in senders))
        for path in (bruce.socket, stream):
            path.unlink()
        bruce.await_true(lambda: bruce.logged("the socket is made again") == 2)
        senders.append(Sender(bruce.socket, b"later", 0.002))
        before = {one: len(one.sent) for one in senders}
        bruce.await_true(lambda: all(len(one.sent) > before[one] + 300 for one in senders))
        sent = [value for one in senders for value in one.stop()]
        seen = bruce.await_status(lambda s: s.received >= len(sent) and s.backlog == 0)
        assert (seen.received, seen.discarded, seen.lost_inputs) == (len(sent), {}, None)
        found = [record.value() for record in consume(kafka.bootstrap_servers, "t", PARTITIONS, len(sent))]
        assert sorted(filter(None, found)) == sorted(sent)
        # If another process answers there, status says so, and nothing is taken back before its end.
        bruce.socket.unlink()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.bind(str(bruce.socket))
            seen = bruce.await_status(lambda s: s.lost_inputs is not None)
            assert f"another process receives at {bruce.socket}" in str(seen.lost_inputs)
        bruce.await_status(lambda s: s.lost_inputs is None)
        assert bruce.stop() == 0
        assert not any(path.exists() for path in (stream, bruce.socket))


def test_an_input_that_cannot_be(bruce: RunningBruce) -> None:
    """A reload that names a file in the way is refused whole; the inputs stay, and messages go on."""
    set_inputs(bruce, f'datagram = "{bruce.runtime / "a"}"')
    with bruce:
        (bruce.runtime / "file").write_text("")
        set_inputs(bruce, f'datagram = "{bruce.runtime / "file"}"')
        bruce.tell(signal.SIGHUP)
        bruce.await_true(lambda: bruce.logged("not reloaded: ") == 1)
        for path in (bruce.runtime / "a", bruce.socket):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(encode(b"t", b"v"), str(path))
        bruce.await_status(lambda seen: seen.delivered == 2)


START = """
import fcntl, os, sys
kept = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 64) for fd in sys.argv[1:]]
for number, fd in enumerate(kept):
    os.dup2(fd, 3 + number)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(kept)))
os.execv(sys.executable, [sys.executable, "-c", "from cli.app import bruce; bruce()", "run"])
"""


@pytest.mark.long
def test_what_is_sent_between_two_daemons(bruce: RunningBruce, kafka: EmbeddedKafka) -> None:
    """Sockets of each kind handed over: what comes while no daemon runs waits in them, for the next one."""
    made = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
    made += [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_INET)]
    paths = [str(bruce.runtime / name) for name in ("one", "two", "stream")]
    for one, path in zip(made, paths, strict=False):
        one.bind(path)
    made[3].bind(("127.0.0.1", 0))
    for one in made[2:]:
        one.listen(64)
    sent = []

    def send(life: int) -> None:
        for number, path in enumerate(paths[:2]):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(encode(b"t", b"%d to %d" % (life, number), timestamp=1), path)
        for number, address in enumerate((paths[2], made[3].getsockname()), 2):
            stream = socket.socket(made[number].family)
            stream.connect(address)
            stream.sendall(encode(b"t", b"%d to %d" % (life, number), timestamp=1))
            stream.close()
        sent.extend(b"%d to %d" % (life, number) for number in range(4))

    bruce.configure({"ingest": {"max_stream_message_bytes": 500_000}})
    for life in range(3):
        # Before it is there, and while it is.
        send(2 * life)
        process = start_with(bruce, made)
        try:
            bruce.await_true((bruce.spool / "identity").exists, START_S)
            bruce.await_status(lambda seen: seen.delivered == len(sent))
            send(2 * life + 1)
            bruce.await_status(lambda seen: seen.delivered == len(sent))
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
        assert code == 0, bruce.log.read_text()
    assert all(Path(path).exists() for path in paths)
    assert not bruce.socket.exists()
    found = [record.value() for record in consume(kafka.bootstrap_servers, "t", PARTITIONS, len(sent))]
    assert sorted(filter(None, found)) == sorted(sent)
    for one in made:
        one.close()


def start_with(bruce: RunningBruce, sockets: list[socket.socket]) -> subprocess.Popen[bytes]:
    """A daemon that is handed these."""
    fds = [one.fileno() for one in sockets]
    with bruce.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", START, *map(str, fds)],
            pass_fds=fds,
            cwd=ROOT,
            env={**os.environ, **bruce.environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
