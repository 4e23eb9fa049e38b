"""`brucectl spark drain` over the fleet, while senders send, and an executor and a broker die."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spool.layout import Layout
from spool.marks.lease import read_grant
from spool.shared.state import Field
from tools.bruce_process import Bruce
from tools.fleets import kafka
from tools.fleets.jobs import SparkJob
from tools.fleets.judgement import FIRST_SENDER
from tools.fleets.options import FleetOptions
from tools.fleets.records import Recorded, read_recorded
from tools.kafka_cluster import KafkaCluster
from tools.load import LoadOptions
from tools.load_process import RunningLoad
from tools.storms.evidence import Evidence
from tools.waiting import wait_until

LIVE = 0
"""The host whose daemon runs."""
HELD = 2
"""The broker that stays frozen if partitions have one copy; else it is killed."""
BROKER_LATER = 0.2
"""Share of the messages between the death of the executor and that of the broker."""
SAY_S, LOOK_S = 10.0, 0.2


class Drain:
    """One drain. Brokers of `cluster` are up; topics are there."""

    def __init__(
        self, options: FleetOptions, evidence: Evidence, cluster: KafkaCluster, layouts: Sequence[Layout]
    ) -> None:
        self._options, self._evidence, self._cluster, self._layouts = options, evidence, cluster, layouts
        self._admin = kafka.connect(cluster.bootstrap)
        self._places = kafka.places_of(dict.fromkeys(options.topic_names, options.partitions))
        self._bounces = options.copies > 1
        """Whether a broker is still to be killed."""
        self.kills: list[dict[Path, Recorded]] = []
        """For each kill of an executor, the records of each spool."""

    def run(self, live: Bruce) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the report of the drain, the report of the load on the live daemon).

        Raises JobBroken, LoadFailed, TookTooLong, KafkaError.
        """
        options = self._options
        # Kafka is away, so that the live daemon, too, has something to lend.
        for broker in self._cluster.brokers:
            self._cluster.freeze(broker.id)
        live.start()
        load = LoadOptions(
            live.socket,
            senders=2,
            topics=tuple(options.topic_names),
            sizes=(120, 400),
            keyed=0.5,
            rate=options.live_rate,
            first_sender=FIRST_SENDER,
            seed=options.seed,
        )
        with RunningLoad(load) as senders:
            wait_until(
                lambda: live.word(Field.SYNCED_SEQUENCE) > options.per_spool,
                options.patience_s,
                "the live daemon to take messages in",
            )
            return self._run_job(live), senders.stop()

    def _run_job(self, live: Bruce) -> dict[str, Any]:
        options, evidence, layout = self._options, self._evidence, self._layouts[LIVE]
        spools = str(layout.directory.parent.parent / "*" / "spool")
        arguments = ("drain", spools, "--config", str(live.config), "--master", options.master)
        with SparkJob(evidence.directory, "drain", *arguments) as job:
            wait_until(
                lambda: not job.running or ((grant := read_grant(layout)) and grant.lent),
                options.patience_s,
                "the live daemon to lend its delivery",
            )
            evidence.say("delivery of the live spool is lent; Kafka comes back")
            for broker in self._cluster.brokers:
                if options.copies > 1 or broker.id != HELD:
                    self._cluster.thaw(broker.id)
            self._follow(job)
            return job.result(0, 1)

    def _follow(self, job: SparkJob) -> None:
        """Watch Kafka's offsets move, and kill an executor and a broker meanwhile."""
        options, evidence = self._options, self._evidence
        said, reached = 0.0, 0
        while job.running:
            reached = max(reached, sum(kafka.ends(self._admin, self._places).values()))
            share = reached / options.messages
            if time.monotonic() - said > SAY_S:
                said = time.monotonic()
                evidence.say(f"{reached:,} of {options.messages:,} messages are in Kafka ({share:.0%})")
            if not self.kills and share >= options.kill_at:
                self._kill_executor(job)
                if options.copies == 1:
                    self._cluster.thaw(HELD)
            if self.kills and self._bounces and share >= options.kill_at + BROKER_LATER:
                self._bounces = False
                self._bounce_broker()
            time.sleep(LOOK_S)
        self._cluster.heal()
        evidence.expect(self.kills, "the drain was over before an executor was killed")
        evidence.expect(not self._bounces, "the drain was over before a broker was killed")

    def _kill_executor(self, job: SparkJob) -> None:
        executors = len(job.executors())
        pid = job.kill_executor()
        recorded = {layout.directory: read_recorded(layout) for layout in self._layouts}
        self.kills.append(recorded)
        written = sum(len(one.files) for one in recorded.values())
        self._evidence.say(
            f"executor {pid}, one of {executors}, is killed; {written:,} outcomes are in files"
        )
        self._evidence.record("events", {"verb": "kill", "executor": pid, "in_files": written})

    def _bounce_broker(self) -> None:
        self._evidence.say(f"broker {HELD} is killed")
        self._cluster.kill(HELD)
        time.sleep(self._options.broker_down_s)
        self._cluster.start(HELD)
        self._evidence.say(f"broker {HELD} is back")
        self._evidence.record("events", {"verb": "kill", "broker": HELD})
