"""Log records become messages, and no trouble of bruce's becomes one of the program that logs."""

from __future__ import annotations

import io
import logging
import logging.config
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span

from bruce_client import BruceHandler
from tests.bruce_client.doors import Doors
from tests.daemon import ROOT
from tests.spool.plain import Message, parse


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger that does not propagate."""
    # Not `getLogger`: pytest puts a handler of its own on every logger that one has.
    logger = logging.Logger("shop")  # noqa: LOG001
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def test_a_record_is_a_message(doors: Doors, logger: logging.Logger) -> None:
    """Formatted, with the record's time, and its key from the attribute that was named; none without it."""
    handler = BruceHandler("orders", doors.datagrams, key="customer")
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logger.addHandler(handler)
    before = time.time_ns() // 1_000_000
    logger.info("sold %d", 3, extra={"customer": 4711})
    after = time.time_ns() // 1_000_000
    logger.error("none left \udc80")
    first, second = doors.records(2)
    assert (first.key(), first.value()) == (b"4711", b"INFO shop sold 3")
    assert before <= first.timestamp()[1] <= after
    assert (second.key(), second.value()) == (None, b"ERROR shop none left \\udc80")
    assert handler.dropped == 0


def test_as_a_dictionary(doors: Doors) -> None:
    """`logging.config.dictConfig` makes one, level and formatter included."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"short": {"format": "<%(message)s>"}},
            "handlers": {
                "bruce": {
                    "class": "bruce_client.BruceHandler",
                    "topic": "orders",
                    "socket": str(doors.datagrams),
                    "key": "name",
                    "level": "WARNING",
                    "formatter": "short",
                }
            },
            "loggers": {"bruce-test": {"handlers": ["bruce"], "level": "DEBUG"}},
        }
    )
    logger = logging.getLogger("bruce-test")
    logger.info("not this")
    logger.warning("this")
    (handler,) = logger.handlers
    logger.removeHandler(handler)
    handler.close()
    (record,) = doors.records(1)
    assert (record.key(), record.value()) == (b"bruce-test", b"<this>")


def test_without_a_daemon(tmp_path: Path, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are dropped, counted, and reported on stderr; only the first one holds up the program."""
    handler = BruceHandler("orders", tmp_path / "nobody", timeout_s=1)
    logger.addHandler(handler)
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    start = time.monotonic()
    logger.info("one")
    assert time.monotonic() - start >= 1
    start = time.monotonic()
    for _ in range(100):
        logger.info("more")
    assert time.monotonic() - start < 100
    assert handler.dropped == 101
    assert said.getvalue().count("no program listens at") == 101
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.info("in silence")
    assert (handler.dropped, said.getvalue().count("no program listens at")) == (102, 101)


@pytest.mark.crash
def test_a_daemon_that_comes_back(
    doors: Doors, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records arrive again, the unread ones of before included, and the handler waits again where it must."""
    handler = BruceHandler("orders", doors.datagrams, timeout_s=0.2)
    logger.addHandler(handler)
    doors.halt_intake()
    logger.info("unread")
    doors.kill()
    logger.info("dropped")
    doors.restart_dead()
    logger.info("back")
    assert (handler.dropped, handler._failing) == (1, False)
    assert doors.values(2) == [b"unread", b"back"]


def test_what_a_program_gets_wrong_is_not_raised(
    tmp_path: Path, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arguments that do not fit the format, a record beyond a datagram, a stack that is used up."""
    handler = BruceHandler("orders", tmp_path / "nobody", timeout_s=0)
    logger.addHandler(handler)
    logger.info("%d", "no number")
    logger.info("x" * 70_000)

    class Deep:
        def __str__(self) -> str:
            return str(self)

    logger.info("%s", Deep())
    assert handler.dropped == 3
    said = capsys.readouterr().err
    assert "a datagram has 65536" in said
    assert said.count("--- Logging error ---") == 2


def test_by_stream_alone(tmp_path: Path, logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    """After a daemon was away records are waited for again; what it has in hand does not count as dropped."""
    path, arrived = tmp_path / "stream", list[bytes]()
    handler = BruceHandler("t", None, stream=path, timeout_s=60)
    logger.addHandler(handler)
    handler._timeout_s = 0
    logger.info("no program is there")
    handler._timeout_s = 60

    def serve() -> None:
        for _ in range(3):
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as stream:
                arrived.append(stream.read())

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        # No wait for this one: no process accepts yet.
        logger.info("one")
        daemon = threading.Thread(target=serve)
        daemon.start()
        logger.info("two")
        logger.info("three")
        daemon.join()
    assert [one.rpartition(b"\0")[2][1:] for one in arrived] == [b"one", b"two", b"three"]
    assert (handler.dropped, handler._failing) == (1, False)


def test_a_record_without_sense_says_nothing_of_the_daemon(
    tmp_path: Path, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next record is waited for as before."""
    handler = BruceHandler("t", tmp_path / "nobody", timeout_s=0)
    logger.addHandler(handler)
    logger.info("%d", "no number")
    logger.info("x" * 70_000)
    assert (handler.dropped, handler._failing) == (2, False)
    logger.info("nobody")
    assert (handler.dropped, handler._failing) == (3, True)


class Socket:
    """A datagram socket without a daemon."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def next(self, timeout_s: float = 60) -> list[Message]:
        """The messages of the next datagram. Raises TimeoutError."""
        self._socket.settimeout(timeout_s)
        found = parse(self._socket.recv(1 << 16))
        assert isinstance(found, list)
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[Socket]:
    """A socket for a handler to send to."""
    found = Socket(tmp_path / "taken")
    yield found
    found.close()


def test_records_that_linger_go_together(taken: Socket, logger: logging.Logger) -> None:
    """They wait, until an error comes: all of them are one datagram, in order, each with its own time."""
    handler = BruceHandler("orders", taken.path, linger_s=600)
    logger.addHandler(handler)
    for number in range(3):
        logger.info("number %d", number)
    with pytest.raises(BlockingIOError):
        taken.next(0)
    logger.error("now")
    found = taken.next(0)
    assert [one.value for one in found] == [b"number 0", b"number 1", b"number 2", b"now"]
    times = [one.timestamp for one in found]
    assert times == sorted(times)
    assert times[0] > 0


def test_records_linger_for_a_time_only(taken: Socket, logger: logging.Logger) -> None:
    """Nothing more is logged, and they are sent all the same; the next ones wait again."""
    logger.addHandler(BruceHandler("orders", taken.path, linger_s=0.05))
    for text in ("first", "second"):
        logger.info(text)
        assert [one.value for one in taken.next()] == [text.encode()]


def test_a_batch_that_is_full_does_not_wait(taken: Socket, logger: logging.Logger) -> None:
    """256 records are sent at once."""
    logger.addHandler(BruceHandler("orders", taken.path, linger_s=600))
    for number in range(257):
        logger.info("%d", number)
    assert [one.value for one in taken.next(0)] == [str(number).encode() for number in range(256)]


def test_one_record_that_cannot_go_takes_no_other_along(
    taken: Socket, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is dropped and told; those before and behind it are sent."""
    handler = BruceHandler("orders", taken.path, linger_s=600)
    logger.addHandler(handler)
    for text in ("before", "x" * 70_000, "behind", "last"):
        logger.info(text)
    handler.flush()
    assert [[one.value for one in taken.next(0)] for _ in range(2)] == [[b"before"], [b"behind", b"last"]]
    assert (handler.dropped, handler._failing) == (1, False)
    assert capsys.readouterr().err.count("--- Logging error ---") == 1


def test_records_that_linger_without_a_daemon_are_counted(
    tmp_path: Path, logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of them is dropped, and told."""
    handler = BruceHandler("orders", tmp_path / "none", linger_s=600, timeout_s=0)
    logger.addHandler(handler)
    for number in range(3):
        logger.info("%d", number)
    assert handler.dropped == 0
    handler.flush()
    assert (handler.dropped, capsys.readouterr().err.count("no program listens")) == (3, 3)


def test_a_fork_does_not_double_what_lingers(taken: Socket, logger: logging.Logger) -> None:
    """The parent sends it; the child sends only what it logs itself."""
    handler = BruceHandler("orders", taken.path, linger_s=600)
    logger.addHandler(handler)
    logger.info("parent's")
    child = os.fork()
    if child == 0:
        logger.info("child's")
        handler.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    handler.close()
    assert [[one.value for one in taken.next(0)] for _ in range(2)] == [[b"child's"], [b"parent's"]]


def test_a_record_within_a_span_has_its_trace_context(taken: Socket, logger: logging.Logger) -> None:
    """The headers are those of W3C's trace context, by OpenTelemetry's API; none without a span."""
    logger.addHandler(BruceHandler("orders", taken.path, linger_s=600))
    state = TraceState([("vendor", "1")])
    context = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, False, TraceFlags(1), state)
    logger.info("outside")
    with use_span(NonRecordingSpan(context)):
        logger.error("inside")
    outside, inside = taken.next(0)
    assert outside.headers == ()
    assert inside.headers == (
        ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("tracestate", b"vendor=1"),
    )


def test_without_opentelemetry(
    taken: Socket, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records have no headers, and are of the oldest kind, which every daemon takes."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace.propagation.tracecontext", None)
    logger.addHandler(BruceHandler("orders", taken.path))
    with use_span(NonRecordingSpan(SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(1)))):
        logger.info("plain")
    (found,) = taken.next(0)
    assert (found.value, found.headers) == (b"plain", ())


def test_the_end_of_a_program(doors: Doors) -> None:
    """The last records are sent by logging's own shutdown when the program ends, without any output."""
    code = (
        "import logging; from bruce_client import BruceHandler;"
        f"handler = BruceHandler('orders', {str(doors.datagrams)!r}, linger_s=600);"
        "logging.basicConfig(handlers=[handler], level='INFO');"
        "logging.info('last words')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert doors.values(1) == [b"INFO:root:last words"]
