"""The daemon put together: what `bruce run` starts."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from cli.config import trial
from cli.config.config import EMBEDDED, Config, load_config
from cli.config.trial import try_parts
from cli.daemon.compiling import Compiler, is_compiled, load_loops
from cli.daemon.delivery import Orders
from cli.daemon.delivery_worker import DeliveryPage, DeliveryWorker
from cli.daemon.footprint import map_what_is_large
from cli.daemon.logs import to_the_end
from cli.status.snapshot import ROLES, list_workers, status_line
from cli.terminal.errors import KNOWN, ConfigError
from dispatch.embedded import EmbeddedKafka
from ingest.acknowledger import Acknowledger
from ingest.buffers.connection_buffers import (
    LANE_SLACK_BYTES,
    Bells,
    ConnectionBuffers,
    buffers_path,
    holds_anything,
    lanes_path,
    make_bells,
    read_all_staging,
    remove_unused,
)
from ingest.buffers.staging import OVERFLOW_BYTES, Staging, read_staging, slots_for, staging_path
from ingest.errors import BadSocket
from ingest.kafka.producers import producers_path
from ingest.role import Role
from ingest.sockets.holding import FdStore, allow_descriptors, folder_of, held_sockets, lock_sockets
from ingest.sockets.inputs import (
    ACK,
    DATAGRAM,
    KAFKA,
    KINDS,
    STREAM,
    TCP,
    Door,
    Inputs,
    activated_doors,
    doors_of,
)
from ingest.sockets.listening import finish
from ingest.streams.stream_worker import StreamWorker
from ingest.supervisor import (
    END,
    GIVE_WAY,
    Supervisor,
    Worker,
    end_when_told,
    give_way_when_told,
    hold_signals,
)
from ingest.watch import ServiceManager, Watch
from ingest.worker.worker import IngestWorker
from router.context import CommittedEnd
from router.outcomes.trace_request import events_path, request_path
from router.timing import FLUSH_S
from spool.errors import SpoolBusy, SpoolError
from spool.format.frame import SEQUENCE
from spool.format.segment_format import body_room
from spool.index.environment import LMDB_REFUSES
from spool.layout import Layout
from spool.log.keeper import Keeper
from spool.log.quotas import publish_open
from spool.log.recovery import go_behind_written, open_spool
from spool.log.writer import Writer
from spool.native.kernel import interpret_meanwhile
from spool.read.overview import SpoolTotals, take_totals
from spool.shared.ledger import Ledger
from spool.shared.runtime import directory_word, own_runtime, shared_state_path
from spool.shared.state import Field, SharedState, read_shared_state
from spool.shared.topics import wanted_path
from spool.storage import disk
from spool.storage.disk import allocated_bytes
from spool.storage.lock import Lock
from spool.storage.ownership import believed
from spool.words import agreeing, size_in_words
from status.access import await_client, open_access

log = logging.getLogger("bruce")


HASTE_S = 2.0
"""At a second signal to stop, how long the sockets are still emptied: to their senders, messages in a socket
count as taken."""
SHOW_STOP_S = 2.0
"""For the status worker, which has nothing to finish."""
_READS = {DATAGRAM: "ingest", STREAM: "stream", TCP: "stream", KAFKA: "kafka", ACK: "ack"}
"""The worker that reads the inputs of a kind."""
_DELIVERY_NICE, _STATUS_NICE = 5, 10
"""Every program waits for the intake and its sync, and few for delivery, which comes second."""
STOP_S = 20.0
"""For the delivery worker's last steps, beside draining and waiting for acknowledgements."""


class Daemon:
    """One running bruce. `run` returns after a clean stop."""

    def __init__(self, config: Config, *, held: bool = False, beside: bool = True) -> None:
        """Own the spool, the sockets and the staging. Raises the errors of all packages.

        `held`: wait for a `bruce hold-socket` that has the sockets. `beside`: if there are no compiled loops
        for this host, workers start without, and a process beside them compiles.
        A signal to stop raises KeyboardInterrupt, as Python has it, up to the moment when there is a socket.
        """
        map_what_is_large()
        self._beside = beside and self._leave_compiling()
        self._manager = ServiceManager()
        self._embedded: EmbeddedKafka | None = None
        if config.dispatch.kafka.get("bootstrap.servers") == EMBEDDED:
            self._embedded = EmbeddedKafka()
        self.config = self._placed(config)
        self._rules = try_parts(self.config)
        # An orderly end leaves none.
        was_killed = bool(Layout(config.spool.directory).list_spares())
        self._spool = open_spool(config.spool)
        for found in disk.weaknesses(self._spool.layout.segments):
            log.warning("%s; %s", *found)
        self._reading: Lock | None = None
        handed = activated_doors() or self._held_doors(wait=held)
        hold_signals()
        self._wanted = self.config.ingest.wanted_inputs(handed)
        self._inputs, self._lost = Inputs(handed, self._wanted), ""
        spool, boot = self._spool.identity.spool, self._spool.identity.boot
        # The folder of its predecessor: messages that it had received, and not written, are there.
        runtime = own_runtime(self._spool.layout.directory, spool, boot)
        self._page_path = shared_state_path(runtime, spool, boot)
        self._staging = staging_path(runtime, spool, boot)
        self._lines, self._lanes = buffers_path(self._staging), lanes_path(self._staging)
        self._refuse_copy()
        self.shared = SharedState(self._page_path)
        if was_killed or self.shared.words[Field.WORKERS]:
            self._say_what_is_found()
        self.shared.words[Field.DIRECTORY] = directory_word(self._spool.layout.directory)
        self._forget_what_was()
        # Made here, so that a file that cannot be made or is not ours ends the start, with one sentence.
        self._locked = Staging(self._staging, spool, slots_for(config.spool.segment_bytes))
        if self._locked.lock_overflow() < self._locked.burst * OVERFLOW_BYTES:
            log.info("staging cannot be locked in memory as a whole (RLIMIT_MEMLOCK); see `brucectl doctor`")
        Ledger(self._spool.layout.ledger)
        # Written by the appender, read by the keeper; by the keeper, read by the deliverer.
        self._keeper_bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._delivery_bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._ack_bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._kafka_bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._begin_connections()
        self._compiler: Compiler | None = None
        self._load_loops()

    def _forget_what_was(self) -> None:
        """Believe nothing of what earlier workers wrote to the shared state that may be otherwise now.

        There may be other spares, another limit, and, put back from a backup, the log of an earlier time.
        """
        stale = (Field.SPARE, Field.FULL, Field.STREAMS_PAUSED, Field.KAFKA_PAUSED)
        self.shared.words[[*stale, Field.LOW_WATERMARK, Field.EVICT]] = 0
        # Producers would tell clients that what the log lacks is stored.
        forget = partial(producers_path(self._staging).unlink, missing_ok=True)
        go_behind_written(self._spool, self.shared, forget)

    def _refuse_copy(self) -> None:
        """Raise SpoolBusy beside the daemon of a copy: both would have one shared state, and one staging."""
        directory = self._spool.layout.directory
        words = read_shared_state(self._page_path, believed(directory))
        if words is None or int(words[Field.DIRECTORY]) in (0, directory_word(directory)):
            return
        if int(words[Field.WORKERS]) == os.getpid():
            # In a container all daemons are process 1: this one's dead predecessor.
            return
        if workers := list_workers(words):
            raise SpoolBusy(
                f"{directory} is a copy of a spool whose daemon lives on this host (process "
                f"{workers[0].pid}): stop that first, or run the copy on another host"
            )

    @staticmethod
    def _leave_compiling() -> bool:
        """Whether a process beside us shall compile; then loops are plain Python from now on.

        A compiler that this process loads would stay with all of its workers.
        """
        if is_compiled() is not False:
            return False
        interpret_meanwhile()
        return True

    def _load_loops(self) -> None:
        if self._beside:
            return
        if is_compiled() is None:
            log.info("compiling for this host, half a minute at each start: see `brucectl doctor`")
        load_loops()

    def _held_doors(self, *, wait: bool) -> list[Door]:
        folder = folder_of(self.config.ingest.datagram_socket)
        if found := held_sockets(folder, wait=wait):
            self._reading = lock_sockets(folder)
        return doors_of(found)

    def doors(self) -> list[str]:
        """The places where messages come in: paths, and addresses."""
        places = [door.input.place for door in self._inputs.of(*KINDS)]
        return [f"127.0.0.1:{place}" if isinstance(place, int) else str(place) for place in places]

    def _begin_connections(self) -> None:
        """Have the buffers of inputs with connections, and of those whose messages a predecessor left."""
        self._stream_bells, self._lane_bells = make_bells(), make_bells()
        self._connections = FdStore()
        self._has_streams = self._has_kafka = False
        if self._inputs.of(STREAM, TCP) or holds_anything(self._lines):
            self._begin_streams()
        if self._inputs.of(KAFKA) or holds_anything(self._lanes):
            self._begin_kafka()

    def _begin_streams(self) -> None:
        self._has_streams = True
        allow_descriptors()
        remove_unused(self._lines, self.config.ingest.max_stream_message_bytes)
        self._map_lines().close()

    def _begin_kafka(self) -> None:
        self._has_kafka = True
        allow_descriptors()
        remove_unused(self._lanes, self.config.ingest.max_stream_message_bytes + LANE_SLACK_BYTES)
        self._map_lanes().close()

    def _map_lines(self) -> ConnectionBuffers:
        """The buffers of connections; they may hold what is left of connections that are gone."""
        limit = self.config.ingest.max_stream_message_bytes
        return self._map_buffers(self._lines, limit, self._stream_bells)

    def _map_lanes(self) -> ConnectionBuffers:
        """The same of the Kafka worker."""
        limit = self.config.ingest.max_stream_message_bytes + LANE_SLACK_BYTES
        return self._map_buffers(self._lanes, limit, self._lane_bells)

    def _map_buffers(self, path: Path, limit: int, bells: Bells) -> ConnectionBuffers:
        room = body_room(self.config.spool.segment_bytes)
        return ConnectionBuffers(path, self._spool.identity.spool, limit, bells, room=room)

    def _placed(self, config: Config) -> Config:
        """The configuration with the address of the embedded Kafka, if that is meant. Raises ConfigError."""
        if config.dispatch.kafka.get("bootstrap.servers") != EMBEDDED:
            return config
        if not self._embedded:
            raise ConfigError(str(config.file), 'the "embedded" Kafka starts with bruce only; restart bruce')
        kafka = {**config.dispatch.kafka, "bootstrap.servers": self._embedded.bootstrap_servers}
        return dataclasses.replace(config, dispatch=dataclasses.replace(config.dispatch, kafka=kafka))

    def run(self) -> None:
        """Run the workers until SIGTERM or SIGINT."""
        self._delivery = Role("delivery", self._deliver, watched=True, nice=_DELIVERY_NICE)
        self._roles = roles = [
            Role("ingest", self._ingest, hasty_stop_s=HASTE_S, watched=True, awaited=True),
            Role("keeper", self._keep, watched=True, awaited=True),
            self._delivery,
        ]
        if self._inputs.of(ACK):
            roles.append(self._feeding("ack", self._acknowledge))
        if self.config.status.port:
            roles.append(
                Role(
                    "status",
                    self._show,
                    stop_s=SHOW_STOP_S,
                    row=ROLES.index("status"),
                    watched=True,
                    needed=False,
                    nice=_STATUS_NICE,
                )
            )
        if self._has_streams:
            roles.append(self._feeding("stream", self._stream))
        if self._has_kafka:
            roles.append(self._feeding("kafka", self._serve_kafka))
        self._allow_time()
        watch = Watch(self.shared, self._manager, lambda: status_line(self.shared.words))
        self.shared.write_text(Field.LOST_INPUTS, "")
        try:
            for role in roles:
                role.run = to_the_end(role.run)
            if self._beside:
                self._compiler = Compiler()
            Supervisor(
                roles,
                self.shared,
                reload=self._reload,
                look=self._mend_inputs,
                renew=self._take_compiled,
                beside=self._connections,
                watch=watch,
            ).run()
            self.shared.words[Field.WORKERS] = 0
            self._say_what_is_left()
            self._clear()
        finally:
            self._leave()

    @staticmethod
    def _feeding(name: str, work: Callable[[], None]) -> Role:
        """The role of a worker that receives messages for others."""
        row = ROLES.index(name)
        return Role(name, work, hasty_stop_s=HASTE_S, ends_first=True, row=row, watched=True, awaited=True)

    def _join(self, worker: Worker, name: str, bell: int = -1) -> None:
        """Let the supervisor end a worker, and see that it works."""
        end_when_told(worker, bell)
        worker.beat = functools.partial(self.shared.beat, ROLES.index(name))

    def _allow_time(self) -> None:
        """Give the delivery worker the time that it may take."""
        self._delivery.stop_s = self.config.dispatch.drain_seconds + 2 * FLUSH_S + STOP_S

    def _reload(self) -> list[str]:
        """Read the configuration again; the names of the workers whose settings changed."""
        try:
            change = trial.compare(self.config, self._placed(load_config(self.config.file)))
            rules = try_parts(change.config)
            replaced = self._change_inputs(change.config)
        except KNOWN as error:
            log.error("not reloaded: %s; the settings stay as they were", error)
            return []
        self.config = change.config
        self._allow_time()
        # Names of users may mean others now, even if the file is unchanged.
        if rules.senders != self._rules.senders:
            replaced |= {"ingest", "ack"}
        self._rules = rules
        roles = [*change.roles, *sorted(replaced)]
        for name in change.kept:
            log.warning("%s is not reloaded; it takes effect at the next start", name)
        log.info("reloaded %s: %s", change.config.file, ", ".join(roles) or "nothing has changed")
        return roles

    def _take_compiled(self) -> list[str]:
        """All workers, when what they run has been compiled beside them."""
        if self._compiler and self._compiler.has_ended():
            return [role.name for role in self._roles]
        return []

    def _change_inputs(self, config: Config) -> set[str]:
        """Open and close inputs as configured now; the workers to replace for it. Raises BadSocket."""
        before, self._wanted = self._wanted, config.ingest.wanted_inputs(self._inputs.of(DATAGRAM, ACK))
        try:
            changed = self._inputs.change(before, self._wanted)
        except BadSocket:
            self._wanted = before
            raise
        replaced = {_READS[kind] for kind in changed}
        if changed:
            # The page shows the inputs that there are.
            replaced.add("status")
        if "stream" in replaced:
            if not self._has_streams:
                self._begin_streams()
                self._roles.append(self._feeding("stream", self._stream))
                replaced.add("ingest")
        if "kafka" in replaced and not self._has_kafka:
            self._begin_kafka()
            self._roles.append(self._feeding("kafka", self._serve_kafka))
            replaced.add("ingest")
        return replaced

    def _mend_inputs(self) -> set[str]:
        """Make lost sockets again; the workers to replace for it. The shared state names the others."""
        kinds, sentences = self._inputs.mend()
        lost = "; ".join(sentences)
        if lost != self._lost:
            self._lost = lost
            self.shared.write_text(Field.LOST_INPUTS, lost)
            if lost:
                log.error("%s", lost)
            else:
                log.warning("programs reach bruce again")
        return {_READS[kind] for kind in kinds}

    def _say_what_is_found(self) -> None:
        """Say what a daemon left that did not come to its end."""
        if found := self._count_what_is_left():
            layout = self._spool.layout
            size = sum(allocated_bytes(layout.segment(*one)) for one in layout.list_segments()[-1:])
            log.warning(
                "the daemon before was killed, or its host went down: %d messages wait for delivery, %d of "
                "them still in staging; the last segment (%s) was searched; it goes on at message %d",
                found.backlog,
                found.staged,
                size_in_words(size),
                int(found.tail[SEQUENCE]),
            )

    def _say_what_is_left(self) -> None:
        if found := self._count_what_is_left():
            then = "; delivery goes on with the next start" if found.backlog else ""
            log.info("%s left in the spool%s", agreeing(found.backlog, "message"), then)

    def _count_what_is_left(self) -> SpoolTotals | None:
        try:
            return take_totals(self._spool.layout, lambda: read_all_staging(self._staging))
        except (SpoolError, OSError, LMDB_REFUSES) as error:
            log.warning("cannot count the messages that are left in the spool: %s", error)
            return None

    def _clear(self) -> None:
        """Remove the files that only workers need, if all of them have ended in order.

        Else a worker may have messages that are only in staging: the next start looks there.
        """
        for path in (self._lines, self._lanes):
            if not holds_anything(path):
                path.unlink(missing_ok=True)
        if not read_staging(self._staging) and not self.shared.words[Field.SUSPECT]:
            self._staging.unlink(missing_ok=True)
            page = self._page_path
            for path in (page, request_path(page), events_path(page), wanted_path(page)):
                path.unlink(missing_ok=True)

    def _leave(self) -> None:
        """Let go of what only a running daemon needs."""
        if self._compiler:
            self._compiler.stop()
        self._inputs.close()
        if self._embedded:
            self._embedded.close()
        if self._reading:
            self._reading.release()
        self._spool.lock.release()

    def _ingest(self) -> None:
        self._connections.forget()
        first, *others = self._inputs.of(DATAGRAM)
        worker = IngestWorker(
            first.socket,
            Staging(self._staging, self._spool.identity.spool, slots_for(self.config.spool.segment_bytes)),
            Writer(self._spool.layout, self._spool.identity, self.shared),
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
        if self._has_kafka:
            worker.serve(self._map_lanes())
        self._join(worker, "ingest")
        give_way_when_told(worker)
        worker.run()

    def _stream(self) -> None:
        doors = self._inputs.of(STREAM, TCP)
        worker = StreamWorker(
            [door.socket for door in doors],
            self._map_lines(),
            self._connections,
            self.shared,
            kept={door.socket.fileno() for door in doors if door.activated},
        )
        self._join(worker, "stream")
        give_way_when_told(worker)
        worker.finish(self._inputs.leaving(STREAM, TCP))
        worker.run()

    def _serve_kafka(self) -> None:
        self._connections.forget()
        # Imported here: no other worker needs the library of Kafka's protocol, nor the codecs.
        from cli.daemon.kafka_input import make_worker  # noqa: PLC0415

        doors = self._inputs.of(KAFKA)
        worker = make_worker(
            {door.socket: door.input for door in doors},
            self._map_lanes(),
            self._staging,
            self._spool,
            self.shared,
            page=self._page_path,
            bells=(self._kafka_bell, self._delivery_bell, self._keeper_bell),
            kept={door.socket.fileno() for door in doors if door.activated},
        )
        for listener in self._inputs.leaving(KAFKA):
            # Clients that wait there come again, to another port.
            finish(listener)
        self._join(worker, "kafka")
        give_way_when_told(worker)
        worker.run()

    def _keep(self) -> None:
        self._connections.forget()
        keeper = Keeper(
            self._spool.layout,
            self._spool.identity,
            self.config.spool,
            self.shared,
            bell=self._keeper_bell,
            # Whichever inputs there are: a reload adds some, and leaves the keeper.
            told=[self._delivery_bell, self._ack_bell, self._kafka_bell],
        )
        self._join(keeper, "keeper", self._keeper_bell)
        keeper.run()

    def _acknowledge(self) -> None:
        door = self._inputs.of(ACK)[0]
        self._connections.forget()
        worker = Acknowledger(
            door.socket,
            self._inputs.of(DATAGRAM)[0].socket.getsockname(),
            self._spool.layout,
            self.shared,
            bell=self._ack_bell,
            last_reader=not door.activated,
            knows_delivery=self.config.dispatch.mode != "at_most_once",
            rules=self._rules,
        )
        worker.leaving = self._inputs.leaving(ACK)
        self._join(worker, "ack")
        give_way_when_told(worker)
        worker.run()

    def _show(self) -> None:
        self._connections.forget()
        # Before there is a server, there is nothing to end in order.
        signal.signal(END, signal.SIG_DFL)
        beat = functools.partial(self.shared.beat, ROLES.index("status"))
        access, listener = open_access(self.config.status), await_client(self.config.status, beat)
        # Imported here: no other worker needs the libraries of a server.
        from cli.daemon.status_worker import Source, serve  # noqa: PLC0415

        kinds = {door.input.kind for door in self._inputs.of(DATAGRAM, STREAM, TCP, KAFKA)}
        spool, witness = self.config.spool.directory, self.config.witness.directory
        serve(Source(spool, self._page_path, kinds, witness), access, listener, beat)

    def _deliver(self) -> None:
        self._connections.forget()
        told = DeliveryPage(self.shared, self._spool.layout, self._page_path)
        worker = DeliveryWorker(
            self._spool.layout,
            self._spool.identity,
            self.config,
            committed=CommittedEnd(self.shared.words[Field.SYNCED :][:1]),
            bell=self._delivery_bell,
            report=told.report,
            give_up=lambda: int(self.shared.words[Field.EVICT]),
            share=lambda place, counts: publish_open(self.shared, place, counts),
            latency=told.latency,
            orders=Orders(
                wants_metadata=told.wants_metadata,
                wants_marks=self.shared.wants_marks,
                wanted_topics=told.wanted_topics,
            ),
            shared=self._page_path,
        )
        end_when_told(worker.orders, self._delivery_bell)

        def leave(_number: int, _frame: FrameType | None) -> None:
            worker.orders.leaving = True
            os.eventfd_write(self._delivery_bell, 1)

        signal.signal(GIVE_WAY, leave)
        worker.run(lambda: int(self.shared.words[Field.SYNCED_SEQUENCE]))
