"""The fleet from beginning to end: a drain while processes die, an audit, a plain consumer, the daemons."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import numpy as np
from confluent_kafka.cimpl import NewTopic

from spool.layout import Layout
from tools.bruce_process import Bruce
from tools.fleets import kafka
from tools.fleets.daemons import Daemons
from tools.fleets.drain import LIVE, Drain
from tools.fleets.jobs import SparkJob
from tools.fleets.judgement import FIRST_SENDER, Verdict, give_verdict
from tools.fleets.options import FleetOptions
from tools.fleets.plant import forget_marks, lose_message
from tools.fleets.records import open_messages
from tools.fleets.spools import Sequences, damage, fill, pack
from tools.fleets.table import Table
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics
from tools.storms.evidence import Evidence
from tools.verify import counts_of, read_topics
from tools.waiting import wait_until

NOTHING = np.empty(0, np.int64)


class Fleet:
    """One run. Brokers of `cluster` are up."""

    def __init__(self, options: FleetOptions, evidence: Evidence, cluster: KafkaCluster) -> None:
        self._options, self._evidence, self._cluster = options, evidence, cluster
        self._topics = dict.fromkeys(options.topic_names, options.partitions)
        self._places = kafka.places_of(self._topics)
        self._admin = kafka.connect(cluster.bootstrap)
        self._hosts = [evidence.directory / "hosts" / f"host-{i:02}" for i in range(options.spools)]
        self._layouts = [Layout(host / "spool") for host in self._hosts]
        self._damaged: dict[int, Sequences] = {}
        self._drained = Drain(options, evidence, cluster, self._layouts)
        self.table = Table()

    def run(self) -> dict[str, Any]:
        """Everything; the summary. Raises JobBroken, TookTooLong, RuntimeError, OSError, KafkaException."""
        self._generate()
        options, cluster = self._options, self._cluster
        config = {"min.insync.replicas": str(min(2, options.copies))}
        topics = {**self._topics, options.witness: 1}.items()
        make_topics(cluster.bootstrap, [NewTopic(n, c, options.copies, config=config) for n, c in topics])
        with ExitStack() as stack:
            bruces = [stack.enter_context(self._bruce(host)) for host in range(options.spools)]
            sent = self._drain(bruces[LIVE])
            self._check_marks()
            audit = self._audit(bruces[LIVE])
            bruces[LIVE].stop()
            verdict = self._verify(sent)
            self._compare(audit, verdict)
            if options.plant == "forgotten":
                forget_marks(self._layouts[1])
            self._start_again(bruces, sent)
        self.table.show(self._evidence.say)
        return {"seed": options.seed, **self.table.values}

    def _bruce(self, host: int) -> Bruce:
        settings: dict[str, dict[str, object]] = {
            "spool": {"max_bytes": 64 << 30, "min_free_bytes": 0},
            "dispatch": {"mode": self._options.mode},
            # Each message goes by its key, whatever its kind.
            f'topics."{self._options.topic_names[-1]}"': {"partitioner": "murmur2"},
        }
        return Bruce(self._hosts[host], self._cluster.bootstrap, settings=settings)

    # -- spools -----------------------------------------------------------------------------------------

    def _generate(self) -> None:
        options, evidence, began = self._options, self._evidence, time.monotonic()
        first_damaged = options.spools - options.damaged
        packed = range(first_damaged + 1 - options.packed, first_damaged + 1)
        segments = 0
        for host, layout in enumerate(self._layouts):
            layout.directory.parent.mkdir(parents=True)
            seed = options.seed + host
            frames = fill(layout.directory, options.per_spool, options.topic_names, host, seed)
            if host >= first_damaged:
                self._damaged[host] = damage(layout, frames, options.damaged_frames, seed)
            if host in packed:
                segments += pack(layout)
            evidence.say(f"host {host}: {options.per_spool:,} messages in {len(frames):,} frames")
        if options.plant == "lost":
            lose_message(self._layouts[1])
        self.table.add("spools", options.spools)
        self.table.add("messages stored", options.per_spool * options.spools)
        self.table.add("in damaged frames", sum(map(len, self._damaged.values())))
        self.table.add("packed segments", segments)
        self.table.timed("generated", options.per_spool * options.spools, time.monotonic() - began)

    # -- the drain --------------------------------------------------------------------------------------

    def _drain(self, live: Bruce) -> dict[int, int]:
        """Drain all, and let the live daemon deliver the rest: the messages sent, by sender."""
        options, evidence = self._options, self._evidence
        done, report = self._drained.run(live)
        evidence.record("load", report)
        evidence.record("drain", done)
        evidence.say(f"drained: {done}")
        self._judge_drain(done)
        self._settle(live, options.per_spool + report["sent"])
        self.table.add("taken in meanwhile", report["sent"])
        return dict.fromkeys(range(options.spools), options.per_spool) | counts_of(report)

    def _judge_drain(self, done: dict[str, Any]) -> None:
        evidence, damaged = self._evidence, sum(map(len, self._damaged.values()))
        evidence.expect(
            done["left"] == damaged, f"{done['left']} are left by the drain, and {damaged} are damaged"
        )
        evidence.expect(done["exit"] == int(damaged > 0), f"the drain exits {done['exit']}")
        evidence.expect(not done["refused"], f"the drain calls messages refused: {done['refused']}")
        evidence.expect(not done["unknown"], f"the drain calls topics unknown: {done['unknown']}")
        self.table.add("executors killed", len(self._drained.kills))
        self.table.add("delivered by Spark", done["delivered"])
        self.table.timed("drained", done["delivered"], done["wall_s"])

    def _settle(self, live: Bruce, received: int) -> None:
        """Wait until the live daemon has delivered what it took in."""

        def settled() -> bool:
            status = live.status()
            return bool(status["received"] == received and status["backlog"] == 0)

        wait_until(
            settled,
            self._options.patience_s,
            f"the live daemon to deliver the rest of {received}",
            pause_s=0.5,
        )
        self._evidence.expect(not live.status()["discarded"], "the live daemon has discarded messages")

    def _check_marks(self) -> None:
        """Check that the marks have every message that was not damaged."""
        for host, layout in enumerate(self._layouts):
            left, gone = open_messages(layout), self._damaged.get(host, NOTHING)
            self._evidence.expect(
                len(left) == len(gone) and left.hold(gone).all(),
                f"the marks of host {host} call {len(left)} messages open, and {len(gone)} are damaged",
            )

    # -- what Kafka has ---------------------------------------------------------------------------------

    def _audit(self, live: Bruce) -> dict[str, Any]:
        """`brucectl spark audit` over all spools, beside the live daemon."""
        evidence, damaged = self._evidence, self._damaged
        evidence.say("auditing")
        arguments = [str(self._hosts[LIVE].parent / "*" / "spool")]
        # Which partition a message belongs in is the configuration's to say.
        arguments += ["--config", str(live.config)]
        with SparkJob(evidence.directory, "audit", "audit", *arguments) as job:
            report = job.result(0, 1)
        evidence.record("audit", report)
        total = report["total"]
        evidence.say(f"audited: {total}")
        for fault in ("lost", "altered", "reordered", "misplaced", "backlog", "discarded", "foreign"):
            evidence.expect(total[fault] == 0, f"the audit finds {total[fault]} {fault}")
        named = {row["directory"]: row["unreadable"] for row in report["spools"] if row["unreadable"]}
        known = {str(self._layouts[host].directory): len(gone) for host, gone in damaged.items()}
        evidence.expect(named == known, f"the audit calls unreadable {named}, and damaged are {known}")
        # It exits 1 if messages are damaged: they are not in Kafka, and lost for good.
        evidence.expect(report["exit"] == int(bool(known)), f"the audit exits {report['exit']}")
        self.table.timed("audited", total["stored"], report["wall_s"])
        self.table.add("lost, says the audit", total["lost"])
        self.table.add("reordered, says the audit", total["reordered"])
        return report

    def _verify(self, sent: dict[int, int]) -> Verdict:
        """The same, by a plain consumer."""
        options, evidence, began = self._options, self._evidence, time.monotonic()
        evidence.say("reading everything back from Kafka")
        records, dropped = read_topics(
            self._cluster.bootstrap, options.topic_names, deadline_s=options.patience_s
        )
        self.table.timed("read back", len(records), time.monotonic() - began)
        spools = [layout.directory for layout in self._layouts]
        verdict = give_verdict(records, dropped, sent, self._damaged, spools, self._drained.kills)
        findings = verdict.findings
        evidence.record("findings", {**findings.as_dict(), **verdict.examples})
        expect = evidence.expect
        expect(verdict.lost == 0, f"{verdict.lost} messages are lost", verdict.examples)
        expect(verdict.risen == 0, f"{verdict.risen} damaged messages are in Kafka", verdict.examples)
        for fault in ("unknown", "received_twice", "corrupt", "out_of_order", "scattered", "dropped"):
            number = getattr(findings, fault)
            expect(number == 0, f"a plain consumer finds {number} {fault}", findings.examples)
        expect(
            verdict.duplicates_unexplained == 0,
            f"{verdict.duplicates_unexplained} messages are in Kafka more often than the kill explains",
            verdict.examples,
        )
        if options.mode == "exactly_once":
            expect(findings.duplicates == 0, f"{findings.duplicates} duplicates, exactly once")
        self.table.add("records in Kafka", findings.messages)
        self.table.add("lost, says a consumer", verdict.lost)
        self.table.add("out of order", findings.out_of_order)
        self.table.add("duplicates", findings.duplicates)
        self.table.add("duplicates unexplained", verdict.duplicates_unexplained)
        return verdict

    def _compare(self, audit: dict[str, Any], verdict: Verdict) -> None:
        """Check that both ways to count agree."""
        said, found = audit["total"]["duplicated"], verdict.doubled
        self._evidence.expect(
            said == found, f"the audit calls {said} messages duplicated, a consumer {found}"
        )

    # -- the daemons ------------------------------------------------------------------------------------

    def _start_again(self, bruces: list[Bruce], sent: dict[int, int]) -> None:
        """Start a daemon on each spool, and check that it sends nothing that Spark has sent."""
        options, evidence, began = self._options, self._evidence, time.monotonic()
        before = self._ends()
        stored = dict.fromkeys(range(options.spools), options.per_spool)
        stored[LIVE] += sum(count for sender, count in sent.items() if sender >= FIRST_SENDER)
        Daemons(bruces, options, evidence).pass_all(
            stored, {host: len(self._damaged.get(host, NOTHING)) for host in stored}
        )
        again = self._ends() - before
        evidence.expect(again == 0, f"the daemons sent {again} messages again")
        self.table.add("sent again by daemons", again)
        self.table.add("daemons took, s", round(time.monotonic() - began, 1))

    def _ends(self) -> int:
        """The sum of the end offsets of all partitions."""
        found: dict[kafka.Partition, int] = {}

        def look() -> bool:
            found.update(kafka.ends(self._admin, self._places))
            return len(found) == len(self._places)

        wait_until(look, self._options.patience_s, "every partition to say where it ends")
        return sum(found.values())


def run_fleet(
    options: FleetOptions, evidence: Evidence, cluster: KafkaCluster | None = None
) -> dict[str, Any]:
    """A run from beginning to end; its summary. Without a cluster it starts one, and ends it."""
    if cluster:
        return Fleet(options, evidence, cluster).run()
    own = KafkaCluster(evidence.directory / "kafka", 3)
    own.up()
    try:
        return Fleet(options, evidence, own).run()
    finally:
        own.down()
