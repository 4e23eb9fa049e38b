"""The daemon put together: what `bruce run` starts."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import signal
from collections.abc import Callable
from types import FrameType

from cli import reloading
from cli.config import EMBEDDED, Config, load_config
from cli.delivery import FLUSH_S
from cli.delivery_page import DeliveryPage
from cli.delivery_worker import DeliveryWorker
from cli.errors import ConfigError
from cli.exits import KNOWN
from cli.inputs import wanted_inputs
from cli.logs import to_the_end
from cli.snapshot import ROLES
from cli.standing import describe
from cli.trial import try_parts
from dispatch.embedded import EmbeddedKafka
from ingest.acknowledger import Acknowledger
from ingest.activation import activated_doors, doors_of
from ingest.bank import OVERFLOW_BYTES
from ingest.datagram import open_socket
from ingest.errors import BadSocket
from ingest.fd_store import FdStore, allow_descriptors
from ingest.holding import folder_of, held_sockets
from ingest.inputs import DATAGRAM, STREAM, TCP, Inputs
from ingest.kernels import compile_kernels, is_compiled
from ingest.lines import Lines, holds_anything, lines_path, make_bells, make_way, read_lines
from ingest.notify import ServiceManager
from ingest.role import Role
from ingest.staging import Staging, read_staging, slots_for, staging_path
from ingest.stream_worker import StreamWorker
from ingest.supervisor import GIVE_WAY, Supervisor, Worker, end_when_told, give_way_when_told, hold_signals
from ingest.watch import Watch
from ingest.worker import IngestWorker
from router.trace_ask import ask_path, events_path
from spool import filesystem
from spool.account import take_account
from spool.errors import SpoolError
from spool.format import body_room
from spool.keeper import Keeper
from spool.ledger import Ledger
from spool.page import Field, Page
from spool.quotas import publish_open
from spool.recovery import open_spool
from spool.runtime import directory_word, own_runtime, page_path
from spool.writer import Writer

log = logging.getLogger("bruce")


HASTE_S = 2.0
"""At a second signal to stop, how long the sockets are still emptied: senders were told that what is in there
was taken."""
SHOW_STOP_S = 2.0
"""For the status worker, which has nothing to finish."""
STOP_S = 20.0
"""For the delivery worker's last steps, beside draining and waiting for acknowledgements."""


class Daemon:
    """One running bruce. `run` returns after a clean stop."""

    def __init__(self, config: Config, *, held: bool = False) -> None:
        """Own the spool, the sockets and the staging. Raises the errors of all packages.

        `held`: wait for a `bruce hold-socket` that has the sockets.
        A signal to stop raises KeyboardInterrupt, as Python has it, up to the moment when there is a socket.
        """
        self._manager = ServiceManager()
        self._embedded: EmbeddedKafka | None = None
        if config.dispatch.kafka.get("bootstrap.servers") == EMBEDDED:
            self._embedded = EmbeddedKafka()
        self.config = self._placed(config)
        self._rules = try_parts(self.config)
        self._spool = open_spool(config.spool)
        for found in filesystem.weaknesses(self._spool.layout.segments):
            log.warning("%s; %s", *found)
        handed, self._handed_ack = activated_doors()
        if not handed:
            folder = folder_of(self.config.ingest.datagram_socket)
            handed, self._handed_ack = doors_of(held_sockets(folder, wait=held))
        hold_signals()
        self._wanted = wanted_inputs(self.config.ingest, handed)
        self._inputs = Inputs(handed, self._wanted)
        chosen = self.config.ingest
        self._ack_receiver = self._handed_ack or (
            open_socket(chosen.ack_socket, chosen.socket_mode, chosen.socket_group)
            if chosen.ack_socket
            else None
        )
        spool, boot = self._spool.identity.spool, self._spool.identity.boot
        # Where a predecessor had its own: what it had received and not written lies there.
        runtime = own_runtime(self._spool.layout.directory, spool, boot)
        self._page_path = page_path(runtime, spool, boot)
        self.page = Page(self._page_path)
        self.page.words[Field.DIRECTORY] = directory_word(self._spool.layout.directory)
        # What a keeper before ours said of room: there may be other spares now, and another limit.
        self.page.words[[Field.SPARE, Field.FULL, Field.STREAMS_HELD]] = 0
        self._staging = staging_path(runtime, spool, boot)
        # Made here, so that a file that cannot be made or is not ours ends the start, with one sentence.
        self._locked = Staging(self._staging, spool, slots_for(config.spool.segment_bytes))
        if self._locked.lock_overflow() < self._locked.burst * OVERFLOW_BYTES:
            log.info("staging cannot be locked in memory as a whole (RLIMIT_MEMLOCK); see `brucectl doctor`")
        Ledger(self._spool.layout.ledger)
        # Written by the appender, read by the keeper; by the keeper, read by the deliverer.
        self._keeper_bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._delivery_bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._ack_bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._lines, self._stream_bells = lines_path(self._staging), make_bells()
        self._connections = FdStore()
        self._has_streams = False
        if self._inputs.of(STREAM, TCP) or holds_anything(self._lines):
            self._begin_streams()
        if not is_compiled():
            log.info("compiling for this host, which takes half a minute, once")
        compile_kernels()

    def doors(self) -> list[str]:
        """Where messages come in: paths, and addresses."""
        inputs = [door.input for door in self._inputs.of(DATAGRAM, STREAM, TCP)]
        found = [f"127.0.0.1:{one.place}" if one.kind == TCP else str(one.place) for one in inputs]
        if self._ack_receiver:
            found.append(str(self._ack_receiver.getsockname()))
        return found

    def _begin_streams(self) -> None:
        self._has_streams = True
        allow_descriptors()
        make_way(self._lines, self.config.ingest.max_stream_message_bytes)
        self._map_lines().close()

    def _map_lines(self) -> Lines:
        """What connections send into; also when there is nothing but what is left of some."""
        limit = self.config.ingest.max_stream_message_bytes
        room = body_room(self.config.spool.segment_bytes)
        return Lines(self._lines, self._spool.identity.spool, limit, self._stream_bells, room=room)

    def _placed(self, config: Config) -> Config:
        """The configuration with the address of the embedded Kafka, if that is meant. Raises ConfigError."""
        if config.dispatch.kafka.get("bootstrap.servers") != EMBEDDED:
            return config
        if not self._embedded:
            raise ConfigError(
                str(config.file), 'the "embedded" Kafka starts with bruce only; start bruce anew'
            )
        kafka = {**config.dispatch.kafka, "bootstrap.servers": self._embedded.bootstrap_servers}
        return dataclasses.replace(config, dispatch=dataclasses.replace(config.dispatch, kafka=kafka))

    def run(self) -> None:
        """Run the workers until SIGTERM or SIGINT."""
        self._delivery = Role("delivery", self._deliver, watched=True)
        self._roles = roles = [
            Role("ingest", self._ingest, hasty_stop_s=HASTE_S, watched=True, awaited=True),
            Role("keeper", self._keep, watched=True, awaited=True),
            self._delivery,
        ]
        if self._ack_receiver:
            roles.append(self._feeding("ack", self._acknowledge))
        if self.config.status.port:
            roles.append(Role("status", self._show, stop_s=SHOW_STOP_S, row=ROLES.index("status")))
        if self._has_streams:
            roles.append(self._feeding("stream", self._stream))
        self._allow_time()
        watch = Watch(self.page, self._manager, lambda: describe(self.page.words))
        try:
            for role in roles:
                role.run = to_the_end(role.run)
            Supervisor(roles, self.page, reload=self._reload, beside=self._connections, watch=watch).run()
            self._say_what_is_left()
            self._clear()
        finally:
            self._leave()

    @staticmethod
    def _feeding(name: str, work: Callable[[], None]) -> Role:
        """A worker that takes in for others."""
        row = ROLES.index(name)
        return Role(name, work, hasty_stop_s=HASTE_S, ends_first=True, row=row, watched=True, awaited=True)

    def _join(self, worker: Worker, name: str) -> None:
        """Let the supervisor end a worker, and see that it works."""
        end_when_told(worker)
        worker.beat = functools.partial(self.page.beat, ROLES.index(name))

    def _allow_time(self) -> None:
        """Give the delivery worker the time that it may take."""
        self._delivery.stop_s = self.config.dispatch.drain_seconds + 2 * FLUSH_S + STOP_S

    def _reload(self) -> list[str]:
        """Take over what stands in the file now; the names of the workers whose settings changed."""
        try:
            change = reloading.compare(self.config, self._placed(load_config(self.config.file)))
            rules = try_parts(change.config)
            replaced = self._change_inputs(change.config)
        except KNOWN as error:
            log.error("not reloaded: %s; the settings stay as they were", error)
            return []
        self.config = change.config
        self._allow_time()
        # Names may have come to mean others, with the file as it was.
        if rules.senders != self._rules.senders:
            replaced |= {"ingest", "ack"}
        self._rules = rules
        roles = [*change.roles, *sorted(replaced)]
        for name in change.kept:
            log.warning("%s is not reloaded; it takes effect at the next start", name)
        log.info("reloaded %s: %s", change.config.file, ", ".join(roles) or "nothing has changed")
        return roles

    def _change_inputs(self, config: Config) -> set[str]:
        """Have the inputs that are configured now; who is to be replaced for it. Raises BadSocket."""
        before, self._wanted = self._wanted, wanted_inputs(config.ingest, self._inputs.of(DATAGRAM))
        try:
            changed = self._inputs.change(before, self._wanted)
        except BadSocket:
            self._wanted = before
            raise
        replaced = {"ingest"} if DATAGRAM in changed else set()
        if changed - {DATAGRAM}:
            replaced.add("stream")
            if not self._has_streams:
                self._begin_streams()
                self._roles.append(self._feeding("stream", self._stream))
                replaced.add("ingest")
        return replaced

    def _say_what_is_left(self) -> None:
        try:
            left = take_account(self._spool.layout, self._read_staging).backlog
        except (SpoolError, OSError) as error:
            log.warning("what is left in the spool cannot be counted: %s", error)
            return
        then = "; the next start delivers them" if left else ""
        log.info("%d messages are left in the spool%s", left, then)

    def _read_staging(self) -> list[tuple[int, int]]:
        return read_staging(self._staging) + read_lines(self._lines)

    def _clear(self) -> None:
        """Take along what only workers need, when all of them have ended in order.

        Else one may have something in hand that lies nowhere but in staging: the next start looks there.
        """
        if not holds_anything(self._lines):
            self._lines.unlink(missing_ok=True)
        if not read_staging(self._staging) and not self.page.words[Field.SUSPECT]:
            self._staging.unlink(missing_ok=True)
            for path in (self._page_path, ask_path(self._page_path), events_path(self._page_path)):
                path.unlink(missing_ok=True)

    def _leave(self) -> None:
        """Let go of what only a running daemon needs."""
        self._inputs.close()
        if self.config.ingest.ack_socket and not self._handed_ack:
            self.config.ingest.ack_socket.unlink(missing_ok=True)
        if self._embedded:
            self._embedded.close()
        self._spool.lock.release()

    def _ingest(self) -> None:
        self._connections.forget()
        first, *others = self._inputs.of(DATAGRAM)
        worker = IngestWorker(
            first.socket,
            Staging(self._staging, self._spool.identity.spool, slots_for(self.config.spool.segment_bytes)),
            Writer(self._spool.layout, self._spool.identity, self.page),
            Ledger(self._spool.layout.ledger),
            bell=self._keeper_bell,
            last_reader=not first.activated,
            rules=self._rules,
        )
        for door in others:
            worker.receivers.join(door.socket, last_reader=not door.activated)
        worker.receivers.leaving = self._inputs.leaving(DATAGRAM)
        if self._has_streams:
            worker.serve(self._map_lines())
        self._join(worker, "ingest")
        give_way_when_told(worker)
        worker.run()

    def _stream(self) -> None:
        doors = self._inputs.of(STREAM, TCP)
        worker = StreamWorker(
            [door.socket for door in doors],
            self._map_lines(),
            self._connections,
            self.page,
            kept={door.socket.fileno() for door in doors if door.activated},
        )
        self._join(worker, "stream")
        give_way_when_told(worker)
        worker.finish(self._inputs.leaving(STREAM, TCP))
        worker.run()

    def _keep(self) -> None:
        self._connections.forget()
        keeper = Keeper(
            self._spool.layout,
            self._spool.identity,
            self.config.spool,
            self.page,
            bell=self._keeper_bell,
            announce=self._announce,
        )
        self._join(keeper, "keeper")
        keeper.run()

    def _announce(self) -> None:
        """Wake who reads what is committed."""
        os.eventfd_write(self._delivery_bell, 1)
        if self._ack_receiver:
            os.eventfd_write(self._ack_bell, 1)

    def _acknowledge(self) -> None:
        assert self._ack_receiver
        self._connections.forget()
        worker = Acknowledger(
            self._ack_receiver,
            self._inputs.of(DATAGRAM)[0].socket.getsockname(),
            self._spool.layout,
            self.page,
            bell=self._ack_bell,
            last_reader=not self._handed_ack,
            knows_delivery=self.config.dispatch.mode != "at_most_once",
            rules=self._rules,
        )
        self._join(worker, "ack")
        give_way_when_told(worker)
        worker.run()

    def _show(self) -> None:
        self._connections.forget()
        # Imported here: what a server brings along is no other worker's.
        from cli.status_worker import serve  # noqa: PLC0415

        serve(self.config, self._page_path)

    def _deliver(self) -> None:
        self._connections.forget()
        told = DeliveryPage(self.page)
        worker = DeliveryWorker(
            self._spool.layout,
            self._spool.identity,
            self.config,
            committed=lambda: self.page.place(Field.SYNCED),
            bell=self._delivery_bell,
            report=told.report,
            give_up=lambda: int(self.page.words[Field.EVICT]),
            share=lambda place, counts: publish_open(self.page, place, counts),
            latency=told.latency,
            wants_metadata=told.wants_metadata,
            page=self._page_path,
        )
        end_when_told(worker.orders)

        def leave(_number: int, _frame: FrameType | None) -> None:
            worker.orders.leaving = True

        signal.signal(GIVE_WAY, leave)
        worker.run(lambda: int(self.page.words[Field.SYNCED_SEQUENCE]))
