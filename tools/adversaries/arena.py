"""One daemon with its Kafka, its honest senders, its consumer, and its attackers."""

from __future__ import annotations

import contextlib
import json
import mmap
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from spool.format.wire import encode
from spool.index.identity import read_identity
from spool.layout import Layout
from spool.log.recovery import boot_id
from spool.shared.state import WORKER_WORDS, Field
from tools.adversaries.attack import Attack, Holder
from tools.adversaries.consumer import SENDERS
from tools.adversaries.honest import send_asking, send_streams
from tools.adversaries.judgement import Observed, Phase, no_rows
from tools.adversaries.options import Options
from tools.adversaries.planting import FORBIDDEN
from tools.adversaries.samples import Sampler
from tools.adversaries.villain import BURST, DONE, DUE, HONEST, SEQUENCE, Villain, Words, connect, flood
from tools.benches.machine import compile_c
from tools.bruce_process import ROOT, Bruce
from tools.kafka_topics import make_topics
from tools.load import LoadOptions
from tools.load_process import LoadFailed, RunningLoad
from tools.storms.watcher import adds_up
from tools.targets import Embedded, Real, Target
from tools.waiting import TookTooLong, wait_until

HONEST_TOPICS = ("honest-0", "honest-1")
STREAM_TOPIC = "honest-stream"
ACK_TOPIC, TCP_TOPIC = "honest-ack", "tcp"
TOPICS = {**dict.fromkeys((*HONEST_TOPICS, STREAM_TOPIC, ACK_TOPIC, TCP_TOPIC), 8), FORBIDDEN: 1}
FLOOD_PARTITIONS = 32
STREAM_RATE = 50
SEGMENT_BYTES, ROOM_BYTES = 1 << 20, 8 << 30
DEADLINE_S = 120.0
"""For an attack, beyond its two phases."""
JUDGE_S = 180.0
"""For the start behind it, and the totals."""
WARM_S, REAL_WARM_S, ARRIVE_S = 1.0, 10.0, 60.0
"""Apache Kafka takes seconds for a message until its own loops are compiled."""
_ARMED, _HITS = 0, 1
_QUEUE_LENGTH = Path("/proc/sys/net/unix/max_dgram_qlen")
FAILURES = (TookTooLong, RuntimeError, OSError, LoadFailed, subprocess.SubprocessError)
"""The errors that an attack may cause, and that count as its finding."""


class Arena:
    """The surroundings of one attack, and its traces for the judgement."""

    def __init__(self, attack: Attack, options: Options, target: Target, directory: Path) -> None:
        self.attack, self.options, self.target, self.directory = attack, options, target, directory
        self.sockets = Path(tempfile.mkdtemp(prefix="bruce-adversary-", dir="/dev/shm"))
        self.sockets.chmod(0o755)
        self.stream, self.ack = self.sockets / "stream", self.sockets / "ack"
        self.tcp_port, self.status_port, self.kafka_port = _free_port(), _free_port(), _free_port()
        self.villains: list[Villain] = []
        self.trouble: list[str] = []
        self.killed = 0
        self._number = options.seed
        self.at_end = ExitStack()
        self.datagrams = self.sockets / "bruce.sock"
        listener = self._listen() if attack.holder is Holder.SYSTEMD else None
        self.kill_words, kill_environ = self._preload(
            "kill_in_digest", "KILL_IN_DIGEST_FILE", wanted=attack.failpoint
        )
        self.clock_words, clock_environ = self._preload(
            "clock_ahead", "CLOCK_AHEAD_FILE", wanted=attack.clock
        )
        self.bruce = Bruce(
            directory,
            target.bootstrap,
            settings=self._settings(),
            inputs=[{"kafka": self.kafka_port}] if attack.kafka else (),
            listener=listener,
            environ={**kill_environ, **clock_environ, **_both(clock_environ, kill_environ)},
        )
        self.bruce.socket = self.datagrams

    def _listen(self) -> socket.socket:
        """The datagram socket, which outlives the daemon."""
        listener = self.at_end.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.bind(str(self.datagrams))
        self.datagrams.chmod(0o666)
        return listener

    @property
    def socket(self) -> Path:
        """Of datagrams."""
        return self.datagrams

    def _preload(self, name: str, variable: str, *, wanted: bool) -> tuple[Words, dict[str, str]]:
        """Words that a library in the daemon reads, and the variables that bring it there."""
        path = self.sockets / name
        path.write_bytes(bytes(16))
        with path.open("r+b") as file:
            words: Words = np.frombuffer(mmap.mmap(file.fileno(), 16), np.int64)
        if not wanted:
            return words, {}
        library = compile_c(name, ROOT / ".cache/adversary-programs", shared=True)
        return words, {variable: str(path), "LD_PRELOAD": str(library)}

    def discarded(self, reason: str) -> int:
        """Messages that were discarded for a reason."""
        return int(self.bruce.status()["discarded"].get(reason, 0))

    def _settings(self) -> dict[str, dict[str, object]]:
        """The attack's, over ours: honest topics are the honest users', one topic is root's, one TCP's."""
        own: dict[str, dict[str, object]] = {
            "ingest": {"datagram_socket": str(self.datagrams), "socket_mode": "0666"},
            "spool": {"max_bytes": ROOM_BYTES, "segment_bytes": SEGMENT_BYTES},
            "access": {"honest-*": [f"uid:{HONEST}"], TCP_TOPIC: ["tcp"], FORBIDDEN: ["uid:0"]},
        }
        here = {"STREAM": str(self.stream), "ACK": str(self.ack), "tcp_port": self.tcp_port}
        here["port"] = self.status_port
        for table, keys in self.attack.settings.items():
            for key, value in keys.items():
                chosen = here[key] if value == 0 and key in here else value
                own.setdefault(table, {})[key] = here.get(str(chosen), chosen)
        return own

    def identity(self) -> tuple[bytes, bytes]:
        """(uuid of the spool, boot id)."""
        return read_identity(Layout(self.bruce.spool)), boot_id()

    def next_number(self) -> int:
        """A seed for repeatable choices."""
        self._number += 1
        return self._number

    def good_message(self, size: int) -> bytes:
        """A message that any user may send, of about this many bytes."""
        return encode(b"flood", bytes(max(1, size - 40)))

    def flood_good(self, stack: ExitStack, rate: int) -> None:
        """Good messages of another user."""
        good = [self.good_message(150)] * 100
        self.villains.append(stack.enter_context(Villain(flood(self.socket, lambda *_: good, rate))))

    def send(self, datagrams: Sequence[bytes]) -> None:
        """Messages of root."""
        with connect(self.socket) as sender:
            sender.settimeout(None)
            for data in datagrams:
                sender.send(data)

    def make_topic(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Make a topic of one copy with settings of its own. Raises KafkaError."""
        make_topics(self.target.bootstrap, [NewTopic(topic, partitions, 1, config=dict(settings))])

    def count_of(self, topic: str) -> int:
        """Records that Kafka has of a topic."""
        with closing(
            KafkaConsumer({"bootstrap.servers": self.target.bootstrap, "group.id": "count"})
        ) as asking:
            known = asking.list_topics(topic, timeout=30).topics[topic].partitions
            places = [TopicPartition(topic, number) for number in known]
            return sum(asking.get_watermark_offsets(place, timeout=30)[1] for place in places)

    def count_topics(self) -> int:
        """Topics that Kafka has."""
        return len(AdminClient({"bootstrap.servers": self.target.bootstrap}).list_topics(timeout=30).topics)

    def tell(self, shared: np.ndarray) -> None:
        """Attackers may know the log's next numbers; there are no more bursts than messages."""
        for villain in list(self.villains):
            villain.words[SEQUENCE] = villain.words[BURST] = shared[Field.WRITTEN_SEQUENCE]

    def report(self, text: str) -> None:
        """Report a fault once, however often it is found."""
        if text not in self.trouble:
            self.trouble.append(text)

    def kill_all(self) -> None:
        """SIGKILL every process at once."""
        self.bruce.kill_all()
        self.killed += 1

    def tear(self) -> None:
        """Tear the next frame that is finished."""
        self.kill_words[_ARMED] = 1

    def torn_by_now(self) -> bool:
        """Whether that frame is torn."""
        return bool(self.kill_words[_ARMED] <= 0)

    def is_flowing(self) -> bool:
        """Whether there is an ingest worker to kill."""
        return "ingest" in self.bruce.workers()

    @property
    def torn(self) -> int:
        """Frames that were torn."""
        return int(self.kill_words[_HITS])

    def restarts(self) -> int:
        """How often workers were started again, since the shared state was made."""
        shared = self.bruce.shared()
        if shared is None:
            return 0
        rows = shared[Field.WORKERS : Field.WORKERS + 8 * WORKER_WORDS].reshape(8, WORKER_WORDS)
        return int(rows[:, 1].sum())

    def close(self) -> None:
        """Leave no process and no runtime files."""
        self.bruce.close()
        self.at_end.close()
        shutil.rmtree(self.sockets, ignore_errors=True)


class Consumer:
    """The consumer's process, and what it has seen by sender."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._output, counts = directory / "seen.npy", directory / "counts"
        counts.write_bytes(bytes(8 * SENDERS))
        self.counts = np.memmap(counts, np.int64, "r", shape=(SENDERS,))
        arguments = [bootstrap, str(self._output), str(counts), json.dumps(list(TOPICS))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.adversaries.consumer", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        self._process.stdout.readline()

    def missing(self, phase: Phase) -> int:
        """How many of these messages have not arrived yet."""
        return sum(max(0, count - int(self.counts[sender])) for sender, count in phase.sent.items())

    def finish(self) -> np.ndarray:
        """All that was seen."""
        self._process.communicate(timeout=120)
        return np.load(self._output) if self._output.exists() else no_rows()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def run_attack(attack: Attack, options: Options, seconds: float, directory: Path) -> Observed:
    """An attack from beginning to end."""
    found = Observed(Phase(), Phase(), no_rows(), timed=attack.timed)
    with _target(attack, options, directory) as target, ExitStack() as stack:
        arena = Arena(attack, options, target, directory)
        stack.callback(arena.close)
        found.trouble = arena.trouble
        consumer = Consumer(target.bootstrap, directory)
        stack.callback(consumer.close)
        sampler = Sampler(arena.bruce, arena.tell)
        try:
            with _deadline(seconds + _attack_s(attack, seconds) + DEADLINE_S):
                attack.before(arena)
                found.first_start_s = _start(arena)
                sampler.start()
                warm_s = REAL_WARM_S if isinstance(target, Real) else WARM_S
                _warm_up(arena, consumer, found.first, warm_s)
                _run_phases(arena, sampler, found, seconds)
        except FAILURES as error:
            arena.report(f"{type(error).__name__}: {error}")
        _settle(arena, consumer, found)
        sampler.stop()
        with _deadline(JUDGE_S):
            _judge_end(arena, found)
        found.seen = consumer.finish()
        found.forbidden = (list(TOPICS).index(FORBIDDEN),)
    return found


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise TookTooLong in what takes longer."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(int(seconds))
    try:
        yield
    finally:
        signal.alarm(0)


def _too_long(_number: int, _frame: FrameType | None) -> None:
    raise TookTooLong("the attack made something wait for ever")


def _attack_s(attack: Attack, seconds: float) -> float:
    """Seconds of the attack phase, where the control has `seconds`."""
    return max(seconds, attack.least_s)


def _both(*environs: Mapping[str, str]) -> dict[str, str]:
    """The variable that brings the libraries of all of these into the daemon.

    The last may stand in for dlsym: what it finds for the others is behind it.
    """
    libraries = [environ["LD_PRELOAD"] for environ in environs if environ]
    return {"LD_PRELOAD": ":".join(libraries)} if libraries else {}


def _run_phases(arena: Arena, sampler: Sampler, found: Observed, seconds: float) -> None:
    attack = arena.attack
    found.control.peak = sampler.begin()
    with ExitStack() as stack:
        attack.control(arena, stack)
        with _honest(arena, found.control, 0, seconds):
            time.sleep(seconds)
    # The peak of the control goes on counting until its own load has ended.
    time.sleep(1.0)
    before = arena.restarts()
    found.attack.peak = sampler.begin()
    arena.villains.clear()
    seconds = _attack_s(attack, seconds)
    with ExitStack() as stack:
        attack.begin(arena, stack)
        end = time.monotonic() + seconds
        with _honest(arena, found.attack, 10, seconds):
            while time.monotonic() < end:
                attack.step(arena)
                time.sleep(0.02)
    if not arena.killed and arena.bruce.pid:
        found.restarts = arena.restarts() - before - arena.torn
    found.deliverers_killed = arena.killed
    if attack.holder is Holder.NOBODY:
        found.may_lose = arena.killed * queue_room()
    if attack.failpoint and not arena.torn:
        arena.report("no worker died between a frame's head and its digest: nothing was tried")


@contextmanager
def _honest(arena: Arena, phase: Phase, first: int, seconds: float) -> Iterator[None]:
    """Honest senders of datagrams, and at each other door that the daemon has; their counts at the end."""
    options = LoadOptions(
        arena.socket,
        seconds=seconds,
        topics=HONEST_TOPICS,
        sizes=(120, 300),
        keyed=0.5,
        rate=arena.options.rate,
        first_sender=first,
        uid=HONEST,
        seed=arena.options.seed,
    )
    with ExitStack() as stack:
        load = stack.enter_context(RunningLoad(options))
        others = {
            first + 5 + number: stack.enter_context(Villain(run, HONEST))
            for number, run in _at_other_doors(arena, first + 5, seconds).items()
        }
        yield
        report = load.wait(seconds + 60)
        phase.sent = {row["sender"]: row["sent"] for row in report["senders"]}
        phase.due = dict.fromkeys(phase.sent, int(options.rate * seconds) // len(phase.sent))
        for sender, other in others.items():
            other.stop()
            phase.sent[sender], phase.due[sender] = int(other.words[DONE]), int(other.words[DUE])


def _at_other_doors(arena: Arena, first: int, seconds: float) -> dict[int, Callable[[Words], None]]:
    """Honest senders of streams, by TCP and with replies, where the daemon takes them; by number."""
    doors = set(arena.attack.settings.get("ingest", ()))
    rate, size = STREAM_RATE, arena.attack.stream_bytes
    found: dict[str, Callable[[int], Callable[[Words], None]]] = {
        "stream_socket": lambda n: send_streams(arena.stream, STREAM_TOPIC, first + n, rate, seconds, size),
        "tcp_port": lambda n: send_streams(arena.tcp_port, TCP_TOPIC, first + n, rate, seconds, size),
        "ack_socket": lambda n: send_asking(arena.ack, ACK_TOPIC, first + n, STREAM_RATE, seconds),
    }
    return {number: make(number) for number, (door, make) in enumerate(found.items()) if door in doors}


def _start(arena: Arena) -> float:
    """Start the daemon: seconds until its workers run."""
    begun = time.monotonic()
    arena.bruce.start()
    return time.monotonic() - begun


def _warm_up(arena: Arena, consumer: Consumer, phase: Phase, seconds: float) -> None:
    """Let honest messages go until all of them arrive: the first seconds are no measure of the others."""
    with _honest(arena, phase, 20, seconds):
        time.sleep(seconds)
    wait_until(lambda: not consumer.missing(phase), ARRIVE_S, "the first messages to arrive", pause_s=0.05)


def _settle(arena: Arena, consumer: Consumer, found: Observed) -> None:
    """Wait for the honest messages, while any of them may still come."""
    with contextlib.suppress(TookTooLong):
        wait_until(
            lambda: not any(consumer.missing(p) for p in (found.first, found.control, found.attack)),
            arena.options.settle_s,
            "honest messages",
            pause_s=0.1,
        )


def _judge_end(arena: Arena, found: Observed) -> None:
    """Kill everything, start it once more, and check the totals."""
    try:
        found.ended_ns = time.time_ns()
        arena.bruce.kill_all()
        found.start_s = _start(arena)
        status = arena.bruce.status()
        found.adds_up = adds_up(status)
        arena.attack.judge(arena)
        arena.bruce.kill_all()
    except FAILURES as error:
        arena.report(f"the start behind it: {type(error).__name__}: {error}")


@contextmanager
def _target(attack: Attack, options: Options, directory: Path) -> Iterator[Target]:
    topics: Mapping[str, int] = {**TOPICS, **dict.fromkeys(("flood", "f", "dead"), FLOOD_PARTITIONS)}
    size = 3 if options.real else 1
    wants = options.real or attack.real
    target: Any = Real(directory / "kafka", size, topics) if wants else Embedded(3, topics)
    with target:
        yield target


def queue_room() -> int:
    """Datagrams that a UNIX socket may have unread: senders wait when there are more than the limit."""
    return int(_QUEUE_LENGTH.read_text()) + 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
