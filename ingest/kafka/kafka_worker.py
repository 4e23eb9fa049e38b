"""The Kafka worker: a broker to its clients, which has the ingest worker store what they produce.

It accepts connections at loopback, and answers requests (ingest.kafka.protocol). A ProduceRequest is written
to a lane as messages of the log (ingest.kafka.storing), and answered when the keeper has synced them, or when
Kafka has acknowledged them. One client's requests are stored and answered in their order.

A connection does not outlive this process, as it would not outlive a broker: clients connect again, and send
again what was not answered. The last batches of producers do (ingest.kafka.producers), and so do the
lanes: any ingest worker stores what was offered.

    Field.KAFKA := requests stored repeated refused waiting        int64[KAFKA_WORDS]

ProduceRequests, and of their batches those that were stored, answered again, and refused, since the shared
state was made; clients that wait for a lane or for an answer.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial

from ingest.access import NO_ID
from ingest.buffers.connection_buffer import ConnectionCounts
from ingest.buffers.connection_buffers import LANE_SLACK_BYTES, ConnectionBuffers
from ingest.kafka.clients import Client, Memory, Options, Reply, Turns
from ingest.kafka.compression import Decompressor
from ingest.kafka.delivered import Delivered
from ingest.kafka.errors import BadRequest
from ingest.kafka.lanes import MOST_LANES, Lane
from ingest.kafka.produce import NOTHING, read_request
from ingest.kafka.producers import Producers
from ingest.kafka.protocol import MOST_OTHER_BYTES, PRODUCE, Header, Responder, Where, read_header
from ingest.kafka.storing import Rules, Storing, settle_predecessor, why_full
from ingest.kafka.sync_requests import SyncRequests, hush
from ingest.kafka.topics import Topics
from ingest.pause import StreamPause
from ingest.sockets.holding import DESCRIPTORS, descriptors
from ingest.sockets.listening import refuse
from spool.layout import Layout
from spool.native.peers import ends_of, users_of
from spool.shared.state import Field, SharedState, no_beat
from spool.throttle import Throttle
from spool.words import counted

log = logging.getLogger("bruce.kafka")

KAFKA_WORDS = 5
REQUESTS, STORED, REPEATED, REFUSED, WAITING = range(KAFKA_WORDS)
MOST_CLIENTS = 2048
MEMORY_BYTES = 128 << 20
"""For requests of all clients, beside SMALL_BYTES of each."""
TURN = 16
"""Requests of a client between two turns of others."""
_TURNS = 256
"""Clients that have a turn between two looks at what comes."""
FULL_S = 0.5
"""Until a client hears that the spool is full: it sends again at once."""
FINISH_S = 5.0
"""At the end, how long for requests that are stored to be answered."""
_IDLE_S = 0.2
_TICK_S = 0.05
"""Between two looks at the marks, and at replies that wait for a time."""
_STEP_S = 0.05
"""Work of one kind in a step: then the others have their turn."""
_BREATH_S = 0.005
"""Between two looks at something that does not wake us."""
_LOOK_S = 1.0
"""Between two looks for clients that are late."""
_LINE_S = 30.0
_MOST_LINES = 64
_MOST_EVENTS = 256


class KafkaWorker:
    """The clients of one process. Make it after forking."""

    def __init__(  # noqa: PLR0913  (each is another part's)
        self,
        listeners: Mapping[socket.socket, Options],
        buffers: ConnectionBuffers,
        producers: Producers,
        layout: Layout,
        shared: SharedState,
        topics: Topics,
        *,
        bell: int,
        keeper_bell: int,
        cluster: str,
        kept: Collection[int] = (),
        most: int = MOST_CLIENTS,
    ) -> None:
        """`bell`: an eventfd that rings when more is committed. `keeper_bell`: one that the keeper hears.

        `cluster`: the id that clients see. `kept`: descriptors of the listeners that another process keeps
        when we stop. `most`: clients that are connected; fewer where the process may have fewer descriptors.
        """
        self.stopping = self.giving_way = False
        self.beat: Callable[[], None] = no_beat
        self._listeners = {one.fileno(): (one, options) for one, options in listeners.items()}
        self._buffers, self._producers, self._shared, self._topics = buffers, producers, shared, topics
        self._kept = kept
        self._most = max(1, min(most, descriptors() - DESCRIPTORS))
        self._intake = StreamPause(shared, Field.KAFKA_PAUSED)
        self._poll = select.epoll()
        for fd in (*self._listeners, buffers.bells.taken):
            self._poll.register(fd, select.EPOLLIN)
        self._syncs = SyncRequests(shared, keeper_bell, bell, self._poll)
        self._clients: dict[int, Client] = {}
        self._of: dict[int, int] = {}
        """How many a user has, with those that are over and whose last request is still being stored."""
        self._leaving = 0
        """The latter."""
        self._turns = Turns()
        self._memory = Memory(MEMORY_BYTES)
        self._free = [Lane(buffers, number) for number in reversed(range(MOST_LANES))]
        self._busy: dict[Lane, tuple[Client, Reply]] = {}
        """Lanes whose run waits to be taken."""
        self._queue: deque[tuple[Client, Reply]] = deque()
        """Requests that wait for a lane."""
        self._parked: deque[tuple[Client, Reply]] = deque()
        self._has_let_go = False
        """Whether the batch that one of these waits for may be there."""
        self._unanswered: dict[Client, None] = {}
        """Those with replies that wait for something."""
        self._answered_to, self._answer_at = -1, 0.0
        """How far the log was synced when all of them were looked at, and when they are again in any case."""
        self._delivered = Delivered(layout)
        self._responders = {
            allow: Responder(
                cluster, partial(topics.partitions, allow_unknown=allow), topics.names, self._warn
            )
            for allow in (False, True)
        }
        decompressor = Decompressor()
        self._rules = {
            allow: Rules(
                producers,
                partial(topics.partitions, allow_unknown=allow),
                topics.is_known,
                partial(why_full, shared.words),
                buffers.limit - LANE_SLACK_BYTES,
                decompressor,
            )
            for allow in (False, True)
        }
        self._throttle = Throttle(_LINE_S)
        self._look_at = 0.0
        self._words = shared.words[Field.KAFKA :][:KAFKA_WORDS]
        self._words[WAITING] = 0
        self._counts = ConnectionCounts(shared.words[Field.CONNECTIONS :])

    def run(self) -> None:
        """Serve until stopped; then take no more, and answer what is stored."""
        self._take_over()
        while not self.stopping:
            self.beat()
            if self._intake.is_paused():
                self._answer_paused()
            else:
                self.step(_IDLE_S)
        self._finish()

    def _answer_paused(self) -> None:
        """Answer what was stored, and store nothing more; the time of clients halts meanwhile."""
        now = time.monotonic()
        self._look_at_taken(paused=True)
        self._answer_all(now)
        for client in self._clients.values():
            client.halt(now)

    def _take_over(self) -> None:
        """Have the runs of a predecessor stored, and note them for their producers."""
        used = [lane for lane in self._free if lane.number < self._buffers.used]
        while any(lane.waits for lane in used) and not self.stopping:
            os.eventfd_write(self._buffers.bells.offered, 1)
            # Not by the poll: clients that connect meanwhile would end each wait.
            time.sleep(_BREATH_S)
            self.beat()
        if not self.stopping:
            settle_predecessor(self._producers, used)
            for lane in used:
                lane.close()

    def _finish(self) -> None:
        """End in order: clients send again to the next worker what was not answered."""
        for fd, (listener, _options) in self._listeners.items():
            # Those who connect now are the next worker's.
            self._poll.unregister(fd)
            if not self.giving_way and fd not in self._kept:
                refuse(listener)
        for client in self._clients.values():
            client.sends_no_more = True
            self._watch(client)
        deadline = time.monotonic() + FINISH_S
        while (self._busy or self._queue or self._unanswered) and time.monotonic() < deadline:
            self.step(_TICK_S)
        for client in list(self._clients.values()):
            self._end(client)

    def step(self, wait_s: float) -> None:
        """Wait for something, and do it."""
        for fd, event in self._poll.poll(self._pause(wait_s), _MOST_EVENTS):
            if fd == self._buffers.bells.taken:
                hush(fd)
                self._look_at_taken()
            elif fd == self._syncs.bell:
                self._syncs.hear(waits=bool(self._unanswered))
            elif fd in self._listeners:
                self._accept(*self._listeners[fd])
            elif client := self._clients.get(fd):
                self._attend(client, event)
        self._take_turns()
        self._take_queue()
        if self._has_let_go:
            self._look_at_parked()
        self._topics.say()
        now = time.monotonic()
        self._answer_all(now)
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._look_for_late(now)
        self._words[WAITING] = len(self._unanswered) + len(self._queue)

    def _take_turns(self) -> None:
        until = time.monotonic() + _STEP_S
        for _ in range(_TURNS):
            if (client := self._turns.next()) is None:
                return
            self._go_on(client)
            if time.monotonic() > until:
                return

    def _answer_all(self, now: float) -> None:
        """Answer those that wait, if more is synced, or if it is time to look for what else they wait for."""
        synced = int(self._shared.words[Field.SYNCED_SEQUENCE])
        if synced == self._answered_to and now < self._answer_at:
            return
        until, all_of_them = time.monotonic() + _STEP_S, now >= self._answer_at
        for client in list(self._unanswered):
            if not all_of_them and client.replies[0].is_synced(self._answered_to):
                continue
            if time.monotonic() > until:
                return
            # Behind the others, if it is to wait on.
            del self._unanswered[client]
            was_read = client.may_send
            self._answer(client, now)
            if client.may_send and not was_read:
                self._turns.add(client)
            elif not client.is_over:
                self._watch(client)
        self._answered_to = synced
        if all_of_them:
            self._answer_at = now + _TICK_S / 2

    def _pause(self, wait_s: float) -> float:
        if self._turns:
            return 0
        if self._unanswered or self._parked or self._queue:
            wait_s = min(wait_s, _TICK_S)
        return wait_s if (said := self._topics.say()) is None else min(wait_s, said)

    # -- clients ----------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, options: Options) -> None:
        """Accept what waits."""
        for _ in range(_MOST_EVENTS):
            try:
                sock, _address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._say("accept", f"no more connections can be accepted: {error.strerror}; they wait")
                time.sleep(_BREATH_S)
                return
            self._admit(sock, options)

    def _admit(self, sock: socket.socket, options: Options) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            (uid,) = users_of([ends_of(sock)])
            host, port, *_ = sock.getsockname()
        except OSError:
            sock.close()
            return
        client = Client(sock, Where(host, port), options, NO_ID if uid is None else uid)
        client.came = time.monotonic()
        self._counts.count_accepted()
        if len(self._clients) + self._leaving >= self._most and not self._make_way(client):
            self._counts.count_closed("user_limit")
            client.close()
            return
        self._clients[sock.fileno()] = client
        self._of[client.uid] = self._of.get(client.uid, 0) + 1
        client.watched = select.EPOLLIN
        self._poll.register(sock, client.watched)

    def _make_way(self, client: Client) -> bool:
        """Whether there is room for it: of too many, the user who has most loses one, or gets no other."""
        most = max(self._of, key=self._of.__getitem__)
        mine = [one for one in self._clients.values() if one.uid == most] if most != client.uid else []
        self._say(
            ("crowd", most),
            f"a client {client.user} comes, and {counted(self._most, 'connection')} are in use, most of them "
            "by one user: that one's new ones are closed, or its idle ones",
        )
        if not mine:
            return False
        victim = min((one for one in mine if one.is_idle), key=lambda one: one.came, default=mine[-1])
        self._end(victim, "user_limit")
        return True

    def _attend(self, client: Client, event: int) -> None:
        if event & select.EPOLLOUT and not client.send():
            self._end(client)
            return
        if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and client.may_send:
            # All that a client sent before has its turn first: when it has ended nothing of that is left.
            if client not in self._turns and not client.receive():
                self._end(client)
                return
        elif event & (select.EPOLLHUP | select.EPOLLERR):
            # No one reads answers any more; what is on its way is stored.
            self._end(client)
            return
        self._turns.add(client)

    def _end(self, client: Client, how: str = "") -> None:
        """Close a connection. `how`: one of CLOSINGS; its end came by itself without one."""
        fd = client.sock.fileno()
        if self._clients.pop(fd, None) is None:
            return
        self._counts.count_closed(how or ("unclean" if client.inbox else "clean"))
        self._poll.unregister(fd)
        client.is_over = True
        client.close()
        client.inbox.clear()
        client.replies.clear()
        self._unanswered.pop(client, None)
        self._memory.forget(client)
        if client.storing:
            # Its last request takes memory until it is stored.
            self._leaving += 1
        else:
            self._leave(client)

    def _leave(self, client: Client) -> None:
        """Nothing is left of it."""
        self._of[client.uid] -= 1
        if not self._of[client.uid]:
            del self._of[client.uid]
        self._memory.grant(client, 0)
        self._feed()

    def _watch(self, client: Client) -> None:
        """Be woken by what it can do."""
        wanted = (select.EPOLLIN if client.may_send else 0) | (select.EPOLLOUT if client.outbox else 0)
        if wanted != client.watched:
            client.watched = wanted
            self._poll.modify(client.sock, wanted)

    def _look_for_late(self, now: float) -> None:
        for client in list(self._clients.values()):
            if (why := client.is_late(now)) == "idle":
                self._end(client)
            elif why:
                self._say(("late", client.uid), f"a client {client.user} is closed: {why}")
                self._end(client, "too_slow")

    def _feed(self) -> None:
        """Go on with those that wait for memory: what they have sent by then may be a whole request."""
        for client in self._memory.feed():
            self._turns.add(client)
            self._watch(client)

    # -- requests ---------------------------------------------------------------------------------------

    def _go_on(self, client: Client) -> None:
        """Take some of the requests that are there, if they may be taken; others have their turn then."""
        try:
            for _ in range(TURN):
                if not client.may_send or (frame := client.next_frame()) is None:
                    break
                self._take(client, frame)
            else:
                self._turns.add(client)
        except BadRequest as error:
            self._say(
                ("request", client.uid, str(error)),
                f"a client {client.user} sent what is no request: {error}; its connection is closed",
            )
            self._end(client, "tls" if client.speaks_tls else "bad_size")
        if client.is_over:
            return
        waited, had = client.starved, client.granted
        self._memory.serve(client)
        if waited and not client.starved:
            self._turns.add(client)
        if client.granted < had:
            self._feed()
        self._watch(client)

    def _take(self, client: Client, frame: memoryview) -> None:
        header = read_header(frame)
        if header.api == PRODUCE:
            self._produce(client, header, frame)
            return
        if len(frame) > MOST_OTHER_BYTES:
            what = f"API key {header.api} with {len(frame)} bytes"
            raise BadRequest(f"{what}: expected at most {MOST_OTHER_BYTES}")
        responder = self._responders[client.options.allow_unknown]
        client.owe(Reply(responder.answer(header, frame, client.where)))
        self._answer(client, time.monotonic())

    def _produce(self, client: Client, header: Header, frame: memoryview) -> None:
        request = read_request(header.version, frame, header.body)
        storing = Storing(request, self._rules[client.options.allow_unknown], client.uid)
        storing.judge()
        self._words[REQUESTS] += 1
        reply = Reply(storing=storing, correlation=header.correlation, version=header.version)
        if storing.is_full:
            reply.not_before = min(time.monotonic() + FULL_S, storing.due)
        client.storing, client.held = reply, len(frame)
        if storing.is_parked:
            self._parked.append((client, reply))
        else:
            self._store(client, reply)

    def _store(self, client: Client, reply: Reply) -> None:
        """Write to a lane, or wait for one; answer when there is no more to write."""
        assert reply.storing
        if not reply.storing.has_more:
            self._stored(client, reply)
        elif self._free:
            self._write(self._free[-1], client, reply)
        else:
            self._queue.append((client, reply))

    def _write(self, lane: Lane, client: Client, reply: Reply) -> None:
        assert reply.storing
        if not lane.reserve():
            self._say("memory", "clients wait: there is no memory to write what they sent to")
            self._resume_later(client, reply)
            return
        self._free.pop()
        self._busy[lane] = client, reply
        self._write_more(lane)

    def _write_more(self, lane: Lane) -> bool:
        """Write another run; False, and the lane is free, when there is none."""
        client, reply = self._busy[lane]
        assert reply.storing
        if reply.storing.has_more and reply.storing.write(lane, time.time_ns() // 1_000_000):
            return True
        self._give_back(lane)
        if reply.storing.has_more:
            self._resume_later(client, reply)
        else:
            self._stored(client, reply)
        return False

    def _give_back(self, lane: Lane) -> None:
        del self._busy[lane]
        lane.close()
        self._free.append(lane)

    def _resume_later(self, client: Client, reply: Reply) -> None:
        """Let others go first."""
        reply.resume_at = time.monotonic() + _TICK_S
        self._queue.append((client, reply))

    def _look_at_taken(self, *, paused: bool = False) -> None:
        """Go on with what was taken: the rest of a request first, then those that wait for a lane.

        `paused`: with nothing that would be written then.
        """
        for lane in [one for one in self._busy if not one.waits]:
            client, reply = self._busy[lane]
            assert reply.storing
            if paused and reply.storing.has_more:
                continue
            reply.storing.settle(lane)
            self._syncs.count(lane.bytes)
            if self._queue and reply.storing.has_more:
                # Others wait for a lane: each has it for one run.
                self._give_back(lane)
                self._queue.append((client, reply))
            elif not self._write_more(lane):
                self._turns.add(client)
            self._has_let_go = True

    def _look_at_parked(self) -> None:
        """Go on with those that waited for another connection's batch; the rest of them in the next step."""
        until, self._has_let_go = time.monotonic() + _STEP_S, False
        for _ in range(len(self._parked)):
            if time.monotonic() > until:
                self._has_let_go = True
                return
            client, reply = self._parked.popleft()
            assert reply.storing
            reply.storing.look_again()
            if reply.storing.is_parked:
                self._parked.append((client, reply))
            else:
                self._store(client, reply)
                self._go_on(client)

    def _take_queue(self) -> None:
        """Go on with those that wait for a lane, each once."""
        until = time.monotonic() + _STEP_S
        for _ in range(len(self._queue)):
            if not self._free or time.monotonic() > until:
                return
            client, reply = self._queue.popleft()
            if time.monotonic() < reply.resume_at:
                self._queue.append((client, reply))
                continue
            self._write(self._free[-1], client, reply)
            self._go_on(client)

    def _stored(self, client: Client, reply: Reply) -> None:
        """All that a request stores is written: its answer waits for the sync, and its client may go on."""
        storing = reply.storing
        assert storing
        for one in storing.parts:
            self._words[REFUSED if one.answer.error else STORED if one.is_stored_now else REPEATED] += 1
            # It waits for its answer without them.
            one.part.records = NOTHING
        client.storing, client.held, self._has_let_go = None, 0, True
        if client.is_over:
            self._leaving -= 1
            self._leave(client)
            return
        if why := storing.unsaid:
            self._say(
                ("unsaid", client.uid, why),
                f"a client {client.user} sent with acks=0, in vain: {why}; its connection is closed",
            )
            self._end(client, "unclean")
            return
        if storing.request.acks:
            client.owe(reply)
            self._syncs.ask(storing.end, len(client.replies))
        self._answer(client, time.monotonic())

    # -- answers ----------------------------------------------------------------------------------------

    def _answer(self, client: Client, now: float) -> None:
        """Send the answers that are true by now, in their order."""
        before = len(client.outbox)
        while client.replies and self._is_due(client, client.replies[0], now):
            client.outbox += client.take_reply().encode()
        if client.replies:
            self._unanswered[client] = None
            self._syncs.wait()
        else:
            self._unanswered.pop(client, None)
        if len(client.outbox) == before:
            return
        if before == 0 and not client.send():
            self._end(client)

    def _is_due(self, client: Client, reply: Reply, now: float) -> bool:
        """Whether an answer can be given; one that waits for delivery is given up after a while."""
        storing = reply.storing
        if storing is None:
            return True
        if now < reply.not_before or storing.end > int(self._shared.words[Field.SYNCED_SEQUENCE]):
            return False
        if not client.options.waits_for_delivery or self._delivered.look(storing, now):
            return True
        self._shared.want_marks(Field.KAFKA_WANTS_MARKS_NS)
        if now < storing.due:
            return False
        storing.give_up()
        return True

    def _warn(self, sentence: str) -> None:
        self._say(sentence, sentence)

    def _say(self, what: object, text: str) -> None:
        if self._throttle.has_room(what, _MOST_LINES) and self._throttle.due(what):
            log.warning("%s", text)
