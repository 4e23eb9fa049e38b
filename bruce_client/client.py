"""Sends messages to the bruce daemon on this host."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from bruce_client.errors import BadMessage, ClientError, QueueFull, TooLarge, Unconfirmed
from bruce_client.message import MAX_DATAGRAM_BYTES, Headers, Message, in_batches, to_bytes
from bruce_client.sockets import Address, DatagramSender, Deadline, deliver

DEFAULT_SOCKET = "/run/bruce/bruce.sock"
DEFAULT_STREAM_LIMIT = 2 << 20
"""As [ingest] max_stream_message_bytes is by default."""
_SIZE_FIELD = 4


class Client:
    """For any number of threads. After a fork the child's connection is its own.

    A message goes as a datagram, and `send` returns when the daemon's queue has it. One that is larger than a
    datagram goes by `stream`, where that is given, and `send` returns when it is stored. A daemon that
    restarts is waited for, and gets what the one before had not read.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = DEFAULT_SOCKET,
        *,
        stream: str | os.PathLike[str] | tuple[str, int] | None = None,
        stream_limit_bytes: int = DEFAULT_STREAM_LIMIT,
        timeout_s: float = 5.0,
    ) -> None:
        """Nothing is connected before the first message.

        `socket`: [ingest] datagram_socket of the daemon; None sends everything by `stream`.
        `stream`: its stream_socket, or host and tcp_port. `stream_limit_bytes`: its max_stream_message_bytes.
        `timeout_s`: how long `send` waits for room, or for a daemon; 0: not at all, math.inf: for ever.
        """
        if socket is None and stream is None:
            raise ValueError("name a socket, or a stream")
        self._datagrams = None if socket is None else DatagramSender(os.fspath(socket))
        self._stream: Address | None = stream if isinstance(stream, tuple | None) else os.fspath(stream)
        self._limit, self._timeout_s = stream_limit_bytes + _SIZE_FIELD, timeout_s
        self._lock = threading.Lock()
        _clients.add(self)

    def send(  # noqa: PLR0913  (the fields of a message)
        self,
        topic: str | bytes,
        value: str | bytes | None,
        *,
        key: str | bytes | None = None,
        headers: Headers = (),
        partition: int | None = None,
        partition_key: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Hand one message to the daemon.

        `value`: None is a null value, which deletes the key in a compacted topic. `key`: of the Kafka record.
        `headers`: of it, in order; a value may be None. `partition`: its number. `partition_key`: messages of
        a topic with the same number go to the same partition, in order. `timestamp_ms`: since the epoch; else
        now. `timeout_s`: in place of the client's. Text is sent as UTF-8. Raises ClientError when the message
        was not sent.
        """
        message = Message(topic, value, key, headers, partition, partition_key, timestamp_ms)
        deadline = Deadline(self._timeout_s if timeout_s is None else timeout_s)
        self._send(_encode(message, _now_ms()), deadline)

    def send_many(self, messages: Iterable[Message], *, timeout_s: float | None = None) -> None:
        """Hand messages to the daemon, in order, as many in a datagram as there is room for.

        The messages of a datagram are taken together, or not at all. `timeout_s`: for all of them. Raises
        ClientError when one was not sent; its `sent` says how many before it were, and counts those that may
        arrive after Unconfirmed.
        """
        deadline, sent = Deadline(self._timeout_s if timeout_s is None else timeout_s), 0
        bad: list[BadMessage] = []
        try:
            for count, data in in_batches(_encode_good(messages, bad)):
                try:
                    self._send(data, deadline)
                except Unconfirmed:
                    sent += count
                    raise
                sent += count
            if bad:
                raise bad[0]
        except ClientError as error:
            error.sent = sent
            raise

    def _send(self, data: bytes, deadline: Deadline) -> None:
        if self._datagrams and len(data) <= MAX_DATAGRAM_BYTES:
            with _Turn(self._lock, deadline):
                self._datagrams.send(data, deadline)
        else:
            self._send_by_stream(data, deadline)

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when the daemon has read everything that was sent: no kill of it can lose that.

        Raises Unconfirmed when it did not in time, and as `send` when there is none any more.
        """
        deadline = Deadline(self._timeout_s if timeout_s is None else timeout_s)
        if self._datagrams:
            with _Turn(self._lock, deadline):
                self._datagrams.flush(deadline)

    def close(self) -> None:
        """Flush, and let go of the socket. Raises as `flush`; the next message would connect again.

        A thread that is sending keeps the socket: when it does not come to an end in time, that is QueueFull.
        """
        deadline = Deadline(self._timeout_s)
        if self._datagrams:
            with _Turn(self._lock, deadline):
                try:
                    self._datagrams.flush(deadline)
                finally:
                    self._datagrams.forget_all()

    def _send_by_stream(self, message: bytes, deadline: Deadline) -> None:
        if self._stream is None:
            raise TooLarge(
                f"the message takes {len(message)} bytes; a datagram has {MAX_DATAGRAM_BYTES}: "
                "give Client a stream, the daemon's [ingest] stream_socket"
            )
        if len(message) > self._limit:
            raise TooLarge(
                f"the message takes {len(message)} bytes; the daemon's limit is {self._limit}: "
                "raise [ingest] max_stream_message_bytes there and stream_limit_bytes here"
            )
        deliver(message, self._stream, deadline)

    def _begin_anew(self) -> None:
        """In a forked child: another thread of the parent may have had the lock."""
        self._lock = threading.Lock()
        if self._datagrams:
            self._datagrams.forget_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error of the program's own is what it wants to hear of.
        with contextlib.suppress(*[] if error is None else [ClientError]):
            self.close()


class _Turn:
    """The lock, if it is free within the time that is left."""

    def __init__(self, lock: threading.Lock, deadline: Deadline) -> None:
        self._lock, self._deadline = lock, deadline

    def __enter__(self) -> None:
        left = self._deadline.left_s()
        if not self._lock.acquire(timeout=-1 if left is None else left):
            raise QueueFull("other threads wait for the daemon, and it was not this one's turn in time")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _encode(message: Message, now_ms: int) -> bytes:
    try:
        return to_bytes(message, now_ms)
    except (ValueError, struct.error) as error:
        raise BadMessage(f"no message for topic {message.topic!r}: {error}") from None


def _encode_good(messages: Iterable[Message], bad: list[BadMessage]) -> Iterator[bytes]:
    """Each message up to one that is none; why is in `bad` then."""
    for message in messages:
        try:
            yield _encode(message, _now_ms())
        except BadMessage as error:
            bad.append(error)
            return


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _begin_anew() -> None:
    for client in list(_clients):
        client._begin_anew()  # noqa: SLF001  (private to this file)


os.register_at_fork(after_in_child=_begin_anew)
