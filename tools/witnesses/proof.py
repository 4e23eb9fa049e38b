"""The proof from beginning to end: spools, kills, a mirror with faults, and what the witness says of it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.cimpl import NewTopic

from pipeline.source.plan import plan_spool
from pipeline.witness.expected import Spools
from pipeline.witness.report import report
from pipeline.witness.state import WitnessState
from spool.index.identity import read_identity
from spool.layout import Layout
from tools.bruce_process import Bruce
from tools.fleets import kafka
from tools.fleets.records import unexplained
from tools.fleets.table import Table
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics
from tools.load import LoadOptions
from tools.load_process import RunningLoad
from tools.storms.evidence import Evidence
from tools.waiting import wait_until
from tools.witnesses.judgement import Judge, Truth, records_of, truth_of
from tools.witnesses.kills import Kills
from tools.witnesses.mirror import Mirror
from tools.witnesses.options import WitnessOptions
from tools.witnesses.planted import Planted
from tools.witnesses.watcher import Watcher

PREFIX = "east."
"""Before the names of topics in the second cluster."""
REFUSED_BYTES = 100
"""No message of the refused topic is as small."""
REFUSED_SHARE = 200
"""One in so many messages goes to the refused topic."""
FIRST_REFUSED = 100
"""The number of the first sender of these."""
SENDERS = 2
COPIES = 3
LOOKS = 5
LATER_KILLS, LATER_LIFE_S = 4, (0.8, 6.0)
"""Of a witness that catches up; the shortest and the longest time until each kill."""


class Proof:
    """One run. The brokers are up."""

    def __init__(
        self, options: WitnessOptions, evidence: Evidence, clusters: Mapping[str, KafkaCluster]
    ) -> None:
        self._options, self._evidence, self._clusters = options, evidence, clusters
        self._hosts = evidence.directory / "hosts"
        self._stack = ExitStack()
        self.table = Table()

    def run(self) -> dict[str, Any]:
        """Everything; the summary. Raises KafkaError, RuntimeError, TookTooLong, LoadFailed."""
        options, began = self._options, time.monotonic()
        self._make_topics()
        planted = Planted(self._hosts / "planted", options.planted, options.topic_names, options.seed)
        with self._stack as stack:
            self._bruces = [stack.enter_context(self._bruce(number)) for number in range(options.daemons)]
            for bruce in self._bruces:
                bruce.start()
            self._planted, self._mirror = planted, self._make_mirror()
            watcher = stack.enter_context(self._watcher("witness"))
            watcher.start()
            self._storm(watcher)
            self._settle()
            self._judge_all(watcher, time.monotonic() - began)
        self.table.show(self._evidence.say)
        return {"seed": options.seed, **self.table.values}

    # -- the parts --------------------------------------------------------------------------------------

    def _make_topics(self) -> None:
        options = self._options
        for name, cluster in self._clusters.items():
            prefix = "" if name == "east" else PREFIX
            size, copies = options.partitions, min(COPIES, cluster.size)
            synced = {"min.insync.replicas": str(min(2, copies))}
            topics = [NewTopic(prefix + one, size, copies, config=synced) for one in options.topic_names]
            if name == "east":
                config = {**synced, "max.message.bytes": str(REFUSED_BYTES)}
                topics.append(NewTopic(options.refused_topic, 1, copies, config=config))
            make_topics(cluster.bootstrap, topics)

    def _bruce(self, number: int) -> Bruce:
        options = self._options
        settings: dict[str, dict[str, object]] = {
            "spool": {
                "segment_bytes": options.segment_kib << 10,
                "keep_delivered_bytes": options.kept_kib << 10,
                "max_bytes": 4 << 30,
                "min_free_bytes": 0,
            },
            "dispatch": {"mode": options.mode},
        }
        return Bruce(self._hosts / f"host-{number}", self._clusters["east"].bootstrap, settings=settings)

    def _make_mirror(self) -> Mirror:
        options, (east, west) = self._options, (self._clusters[one].bootstrap for one in ("east", "west"))
        return Mirror(east, west, options.topic_names, options.partitions, PREFIX, options.seed)

    def _watcher(self, name: str) -> Watcher:
        tiers = {
            "east": self._clusters["east"].bootstrap,
            "west": f"{self._clusters['west'].bootstrap}/{PREFIX}",
        }
        return Watcher(self._evidence.directory / name, self._paths, tiers, late_s=self._options.late_s)

    @property
    def _layouts(self) -> list[Layout]:
        """Of all spools, the daemons' first."""
        return [*(Layout(bruce.spool) for bruce in self._bruces), self._planted.layout]

    @property
    def _paths(self) -> list[str]:
        return [str(layout.directory) for layout in self._layouts]

    # -- the run ----------------------------------------------------------------------------------------

    def _storm(self, watcher: Watcher) -> None:
        """Send, deliver, mirror and witness, while all of them are killed."""
        options, evidence = self._options, self._evidence
        evidence.say(f"{options.rate} messages a second to each of {options.daemons} daemons")
        self._mirror.start()
        self._planted.start(self._clusters["east"].bootstrap, options.per_daemon / options.rate)
        kills = Kills(options, evidence, watcher, self._bruces, self._clusters)
        self._kills = kills
        with ExitStack() as running:
            loads = [running.enter_context(RunningLoad(one)) for one in self._loads()]
            kills.run()
            self._sent = sum(load.wait(options.patience_s)["sent"] for load in loads)
        self._planted.join(options.patience_s)
        evidence.say(f"{self._sent:,} messages are sent")

    def _loads(self) -> list[LoadOptions]:
        options, found = self._options, []
        for number, bruce in enumerate(self._bruces):
            refused = options.per_daemon // REFUSED_SHARE
            found.append(
                LoadOptions(
                    bruce.socket,
                    count=options.per_daemon - refused,
                    senders=SENDERS,
                    topics=tuple(options.topic_names),
                    sizes=(260, 500),
                    keyed=0.5,
                    batches=(1, 8),
                    headers=0.4,
                    tombstones=0.1,
                    rate=options.rate,
                    first_sender=number * SENDERS,
                    seed=options.seed + number,
                )
            )
            found.append(
                LoadOptions(
                    bruce.socket,
                    count=refused,
                    senders=1,
                    topics=(options.refused_topic,),
                    sizes=(200, 300),
                    rate=options.rate // REFUSED_SHARE + 1,
                    first_sender=FIRST_REFUSED + number,
                    seed=options.seed - number,
                )
            )
        return found

    def _settle(self) -> None:
        """Wait until all is delivered, and mirrored; the daemons end, so that their last blocks have sums."""
        options = self._options
        self._discarded = []
        for number, bruce in enumerate(self._bruces):
            status: dict[str, Any] = {}

            def delivered(bruce: Bruce = bruce, status: dict[str, Any] = status) -> bool:
                status.update(bruce.status())
                return bool(status["backlog"] == 0)

            wait_until(delivered, options.patience_s, f"daemon {number} to deliver all", pause_s=0.5)
            self._discarded.append(sum(status["discarded"].values()))
            self._evidence.record("status", status)
            bruce.stop()
        self._mirror.catch_up(options.patience_s)
        self._mirror.stop()
        self._evidence.say(f"all is delivered and mirrored; faults of the mirror: {dict(self._mirror.made)}")

    # -- the judgement ----------------------------------------------------------------------------------

    def _judge_all(self, watcher: Watcher, storm_s: float) -> None:
        truths, names = self._truths()
        records = {"east": records_of(self._mirror.read), "west": records_of(self._mirror.written)}
        self._await(watcher, truths)
        audit, audit_s = watcher.audit()
        self._evidence.record("audit", audit)
        began = [plan_spool(layout).begin for layout in self._layouts]
        uuids = [read_identity(layout).hex() for layout in self._layouts]
        self._evidence.expect(
            all(began[:-1]), f"no segment has left a spool of a daemon: they begin with {began}"
        )
        whole = [uuid for uuid, begin in zip(uuids, began, strict=True) if begin == 0]
        judge = Judge(self._evidence, truths, names)
        judge.judge(audit, records, whole)
        looked = self._time_report(watcher)
        code = watcher.end(signal.SIGTERM)
        self._evidence.expect(code == 0, f"the witness exits {code} after SIGTERM")
        later = self._watch_later(truths, audit, kills=0)
        self._watch_later(truths, audit, kills=LATER_KILLS)
        self._empty(watcher, audit)
        self._say(truths, names, records, began)
        self._say_cost(watcher, later, sum(records.values()))
        self.table.add("audit, looking at spools, ms", looked[0])
        self.table.add("audit, state and verdict, ms", looked[1])
        self.table.add("audit, whole command, s", round(audit_s, 1))
        self.table.add("until all was mirrored, s", round(storm_s, 1))

    def _say_cost(self, watcher: Watcher, later: Watcher, records: int) -> None:
        """The CPU time of a witness in the storm, and of one that read all at once."""
        add = self.table.add
        add("witness, lives", watcher.lives)
        add("witness, CPU s", round(watcher.cpu_s, 1))
        add("witness, CPU us a record", round(watcher.cpu_s / records * 1e6, 2))
        add("witness, peak MiB", round(watcher.peak_mib))
        add("later witness, CPU s until it reads", round(later.begun_cpu_s, 1))
        add("later witness, CPU s behind that", round(later.cpu_s - later.begun_cpu_s, 1))
        add("later witness, CPU us a record", round((later.cpu_s - later.begun_cpu_s) / records * 1e6, 2))

    def _truths(self) -> tuple[dict[tuple[str, str], Truth], dict[str, str]]:
        """The truth of each spool in each tier, and the names of spools."""
        planted, mirror = self._planted, self._mirror
        mirror.read.altered.update(planted.altered)
        # An altered record is copied as it is.
        there = mirror.written.copies
        mirror.written.altered.update({one: how for one, how in planted.altered.items() if one in there})
        truths, names = {}, {}
        for number, layout in enumerate(self._layouts):
            spool, stored = read_identity(layout).hex(), plan_spool(layout).next_sequence
            names[spool] = layout.directory.parent.name
            if number < len(self._bruces):
                # Messages that are not in the first tier were discarded: the daemon says how many these are.
                discarded = truth_of(spool, stored, np.empty(0, np.int64), mirror.read).missing
                told = self._discarded[number]
                text = f"{names[spool]} discarded {told}, and {len(discarded)} are not in east"
                self._evidence.expect(len(discarded) == told > 0, text)
            else:
                discarded = planted.discarded
            for tier, contents in (("east", mirror.read), ("west", mirror.written)):
                truths[tier, spool] = truth_of(spool, stored, discarded, contents)
        self._check_planted(truths["east", planted.uuid.hex()])
        return truths, names

    def _check_planted(self, truth: Truth) -> None:
        """Whether the hand-made faults are in Kafka as they were made."""
        lost = truth.missing.tolist()
        self._evidence.expect(lost == sorted(self._planted.lost), "a planted record is not in Kafka")
        doubled = self._planted.made["double"]
        text = f"{len(truth.duplicated)} planted messages are doubled, and {doubled} were to be"
        self._evidence.expect(len(truth.duplicated) == doubled, text)

    def _await(self, watcher: Watcher, truths: Mapping[tuple[str, str], Truth]) -> None:
        """Wait until the witness has read all, and all is due. Raises TookTooLong, RuntimeError."""
        since = time.time()
        wanted = {place: truth.judged for place, truth in truths.items()}

        def is_due() -> bool:
            nonlocal since
            if watcher.written_s() <= since:
                return False
            document = watcher.document()
            tiers, since = document["tiers"], document["written_s"]
            self._evidence.record("document", document)
            found = {(tier["tier"], row["spool"]): row["judged"] for tier in tiers for row in tier["spools"]}
            late = sum(row["late"] for tier in tiers for row in tier["spools"])
            return not late and not any(tier["lag"] for tier in tiers) and found == wanted

        wait_until(is_due, self._options.patience_s, "all to be due", pause_s=0.2)

    def _watch_later(
        self, truths: Mapping[tuple[str, str], Truth], audit: Mapping[str, Any], *, kills: int
    ) -> Watcher:
        """A witness that begins now says the same, also if it is killed while it catches up."""
        evidence, began = self._evidence, time.monotonic()
        evidence.say(f"another witness reads all, with {kills} kills")
        rng = random.Random(f"later {self._options.seed}")  # noqa: S311  (a load, not a secret)
        with self._watcher(f"later-{kills}") as later:
            for _ in range(kills):
                later.start(wait=False)
                time.sleep(rng.uniform(*LATER_LIFE_S))
                evidence.expect(later.end(signal.SIGKILL) == -signal.SIGKILL, "a witness ended by itself")
            later.start()
            self._await(later, truths)
            if not kills:
                self.table.add("later witness, s until all is judged", round(time.monotonic() - began, 1))
            found, _ = later.audit()
            evidence.record("later", found)
            evidence.expect(found == audit, f"another witness with {kills} kills says something else")
            later.end(signal.SIGTERM)
        return later

    def _empty(self, watcher: Watcher, audit: Mapping[str, Any]) -> None:
        """When Kafka has nothing left, the witness says the same, but for single altered messages."""
        options = self._options
        self._evidence.say("both clusters lose all their records")
        for name, cluster in self._clusters.items():
            prefix = "" if name == "east" else PREFIX
            places = kafka.places_of({prefix + one: options.partitions for one in options.topic_names})
            admin = kafka.connect(cluster.bootstrap)
            wanted = [TopicPartition(*place, OFFSET_END) for place in places]
            for gone in admin.delete_records(wanted).values():
                gone.result(options.patience_s)
        watcher.start()
        looked = watcher.written_s()
        wait_until(lambda: watcher.written_s() > looked, options.patience_s, "the witness to look again")
        found, _ = watcher.audit()
        rows = [row for tier in found["tiers"] for row in tier["spools"]]
        text = "the audit names altered messages that Kafka has no more"
        self._evidence.expect(not any(row["altered"] for row in rows), text)
        told = [row for tier in audit["tiers"] for row in tier["spools"]]
        for row, before in zip(rows, told, strict=True):
            row.update({name: before[name] for name in ("altered", "unread_blocks")})
        self._evidence.record("empty", found)
        self._evidence.expect(found == audit, "the witness says something else when Kafka has no records")
        watcher.end(signal.SIGTERM)

    def _time_report(self, watcher: Watcher) -> tuple[float, float]:
        """Milliseconds of the audit's own work, the best of some: (looking at the spools, the rest)."""
        looks, rests = [], []
        for _ in range(LOOKS):
            began = time.perf_counter()
            sides = Spools(self._paths).look()
            looks.append(time.perf_counter() - began)
            with closing(WitnessState(watcher.state, readonly=True)) as state:
                report(state, sides)
            rests.append(time.perf_counter() - began - looks[-1])
        return round(min(looks) * 1000, 1), round(min(rests) * 1000, 1)

    def _say(
        self,
        truths: Mapping[tuple[str, str], Truth],
        names: Mapping[str, str],
        records: Mapping[str, int],
        began: list[int],
    ) -> None:
        """The figures of what was to be found."""
        add = self.table.add
        add("messages", sum(truths["east", spool].judged for spool in names))
        for tier, count in records.items():
            mine = [truths[tier, spool] for spool in names]
            add(f"{tier}: records", count)
            add(f"{tier}: missing", sum(len(one.missing) for one in mine))
            add(f"{tier}: duplicated", sum(len(one.duplicated) for one in mine))
            add(f"{tier}: altered", sum(len(one.altered) for one in mine))
            add(f"{tier}: altered, in blocks with losses", sum(one.hidden for one in mine))
            add(f"{tier}: altered blocks", sum(len(one.altered_blocks) for one in mine))
        add("discarded", sum(self._discarded) + len(self._planted.discarded))
        add("messages of segments that left", sum(began))
        self._explain()
        for kind, count in sorted(self._kills.done.items()):
            add(f"kills: {kind}", count)

    def _explain(self) -> None:
        """Count the messages that the daemons doubled. Each needs a kill at which it was not recorded."""
        kills, doubled, by_broker = self._kills, 0, 0
        for bruce in self._bruces:
            spool, path = read_identity(Layout(bruce.spool)).hex(), bruce.spool
            sequences, copies = self._mirror.read.sequences(spool)
            twice = sequences[copies > 1], copies[copies > 1] - 1
            strange = unexplained([*kills.recorded[path], *kills.cut_off[path]], path, *twice)
            text = f"{len(strange)} messages are in east more often than kills explain"
            self._evidence.expect(len(strange) == 0, text, {"sequences": strange[:20].tolist()})
            doubled += len(twice[0])
            by_broker += len(unexplained(kills.recorded[path], path, *twice))
        if self._options.mode == "exactly_once":
            self._evidence.expect(doubled == 0, f"{doubled} duplicates, exactly once")
        self.table.add("duplicates that daemons made", doubled)
        self.table.add("of them only by a kill of the broker", by_broker)


def run_proof(options: WitnessOptions, evidence: Evidence) -> dict[str, Any]:
    """A run from beginning to end; its summary. It starts both clusters, and ends them."""
    with ExitStack() as stack:
        clusters = {}
        for name, brokers in (("east", options.brokers), ("west", 1)):
            clusters[name] = KafkaCluster(evidence.directory / "kafka" / name, brokers, auto_create=False)
            stack.callback(clusters[name].down)
            clusters[name].up()
        return Proof(options, evidence, clusters).run()
