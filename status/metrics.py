"""The text of /metrics, by Prometheus' conventions: base units, `_total` for counters.

Totals are those of the spool's whole life, so they do not restart at 0 with bruce; those that do (restarts,
processor time, acknowledgements by broker) are counters all the same, by Prometheus' rules.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from spool.shared.histogram import Histogram
from status.figures import Counted, Figures, release
from status.health import Health
from status.report import MOST_TOPICS, OTHERS, TimesView, shown_name
from status.witness import SpoolView, WitnessView, summed

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""The format that every scraper knows."""
CONDITIONS = (
    "stopped",
    "release",
    "worker",
    "inputs",
    "trouble",
    "old",
    "late",
    "full",
    "filling",
    "discards",
    "disk",
    "marks",
    "witness",
)
"""Those of status.health: each has a series, so that an alert sees 0 and not nothing."""
_TIMES = {
    "round_trip": "How long a broker took to answer a request.",
    "queue": "How long messages waited in the producer before they went into a request to a broker.",
    "throttle": "How long a broker asked to be left alone.",
}
OTHER_TOPICS = OTHERS.decode()
STATES = ("healthy", "stalled", "backing_off")
MOST_SPOOLS = 1000
"""Spools of tiers that have series of their own; all others of a tier share one."""
_VERDICTS = {
    "judged_messages": "Messages of a spool that must be in the tier by now.",
    "missing_messages": "Messages of these that are not in the tier.",
    "late_messages": "Messages that were delivered, and are not in the tier yet.",
    "duplicated_messages": "Messages that are in the tier more than once.",
    "altered_blocks": "Blocks of 4,096 messages that have another content in the tier.",
    "uncompared_blocks": "Blocks of 4,096 messages whose content cannot be compared.",
}
"""By the end of its name, the HELP text of a family."""


def exposition(figures: Figures, health: Health) -> bytes:
    """The text of one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Look(figures, health))
    return generate_latest(registry)


class _Look(Collector):
    def __init__(self, figures: Figures, health: Health) -> None:
        self._figures, self._health = figures, health

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("bruce_build", "The release.", {"version": release()})
        yield _gauge(
            "bruce_start_time_seconds", "When the daemon was started.", self._health.started_ns / 1e9
        )
        yield from _totals(self._figures)
        yield from _senders(self._figures)
        yield from _inputs(self._figures)
        yield from _health(self._figures)
        yield from _room(self._figures)
        yield from _topics(self._figures)
        yield from _brokers(self._figures)
        yield from _times(self._figures)
        if self._figures.counted:
            yield from _counted(self._figures.counted)
        yield from _processes(self._figures)
        if witness := self._figures.report.witness:
            yield from _tiers(witness)
            yield from _verdicts(witness)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value)


def _totals(figures: Figures) -> Iterator[Metric]:
    seen = figures.report.snapshot
    yield CounterMetricFamily("bruce_messages_received", "Datagrams that senders sent.", seen.received)
    yield CounterMetricFamily("bruce_messages_delivered", "Messages that Kafka acknowledged.", seen.delivered)
    discarded = CounterMetricFamily(
        "bruce_messages_discarded", "Messages that will never be delivered, by reason.", labels=["reason"]
    )
    # Those of which there is none, too: the first of them is an increase then.
    for reason in dict.fromkeys([*figures.reasons, *seen.discarded]):
        discarded.add_metric([reason], seen.discarded.get(reason, 0))
    yield discarded
    yield CounterMetricFamily(
        "bruce_messages_dead_lettered",
        "Discarded messages that the dead-letter topic has.",
        seen.dead_lettered,
    )
    yield _gauge("bruce_backlog_messages", "Messages that wait to be delivered.", seen.backlog)
    marks = GaugeMetricFamily(
        "bruce_watermark_sequence", "The next sequence number not yet at each level.", labels=["level"]
    )
    for level in ("accepted", "written", "synced", "delivered"):
        marks.add_metric([level], getattr(seen.watermarks, level))
    yield marks
    if acks := seen.acknowledgements:
        replies = CounterMetricFamily(
            "bruce_ack_messages",
            "Messages of ack_socket since the start, by what became of them.",
            labels=["event"],
        )
        for event in ("taken", "replied", "dropped", "refused"):
            replies.add_metric([event], getattr(acks, event))
        yield replies
    if kafka := seen.kafka:
        yield CounterMetricFamily(
            "bruce_kafka_input_requests", "ProduceRequests of Kafka inputs since the start.", kafka.requests
        )
        batches = CounterMetricFamily(
            "bruce_kafka_input_batches",
            "Batches of these requests, by what became of them.",
            labels=["event"],
        )
        for event in ("stored", "repeated", "refused"):
            batches.add_metric([event], getattr(kafka, event))
        yield batches


def _senders(figures: Figures) -> Iterator[Metric]:
    received = CounterMetricFamily(
        "bruce_sender_messages_received",
        "Messages by the uid that sent them, refused ones too.",
        labels=["uid"],
    )
    discarded = CounterMetricFamily(
        "bruce_sender_messages_discarded",
        "Messages refused at intake, by the uid that sent them.",
        labels=["uid", "reason"],
    )
    for sender in figures.report.snapshot.senders:
        received.add_metric([sender.sender], sender.received)
        for reason, count in sender.discarded.items():
            discarded.add_metric([sender.sender, reason], count)
    yield from (received, discarded)


def _inputs(figures: Figures) -> Iterator[Metric]:
    messages = CounterMetricFamily(
        "bruce_input_messages", "Messages by how they came, stored or refused.", labels=["input", "event"]
    )
    accepted = CounterMetricFamily(
        "bruce_connections_accepted", "Connections that came, by input.", labels=["input"]
    )
    closed = CounterMetricFamily(
        "bruce_connections_closed",
        "Connections that ended: clean, inside a message (unclean), or by bruce.",
        labels=["input", "how"],
    )
    failed = CounterMetricFamily(
        "bruce_connection_errors", "Connections that failed, as by a reset.", labels=["input"]
    )
    present = GaugeMetricFamily("bruce_connections_open", "Connections, by input.", labels=["input"])
    for one in figures.report.snapshot.inputs:
        messages.add_metric([one.input, "stored"], one.stored)
        messages.add_metric([one.input, "refused"], one.refused)
        if found := one.connections:
            accepted.add_metric([one.input], found.accepted)
            failed.add_metric([one.input], found.errors)
            present.add_metric([one.input], found.open)
            for how, count in found.closed.items():
                closed.add_metric([one.input, how], count)
    yield from (messages, accepted, closed, failed, present)


def _health(figures: Figures) -> Iterator[Metric]:
    wrong = {complaint.condition for complaint in figures.unhealthy}
    found = GaugeMetricFamily(
        "bruce_unhealthy", "1 while brucectl status calls the spool unhealthy for this.", labels=["condition"]
    )
    for condition in CONDITIONS:
        found.add_metric([condition], condition in wrong)
    yield found


def _room(figures: Figures) -> Iterator[Metric]:
    report = figures.report
    age = report.oldest.age_seconds if report.oldest else 0.0
    yield _gauge("bruce_oldest_message_age_seconds", "Age of the oldest undelivered message.", age)
    yield _gauge("bruce_spool_size_bytes", "Disk that the spool takes.", report.snapshot.spool.bytes)
    yield _gauge("bruce_spool_segments", "Segments of the spool.", report.snapshot.spool.segments)
    if report.room:
        yield _gauge("bruce_backlog_bytes", "Disk that undelivered messages take.", report.room.waiting_bytes)
        yield _gauge(
            "bruce_capacity_bytes", "Disk that undelivered messages may take.", report.room.capacity_bytes
        )


def _topics(figures: Figures) -> Iterator[Metric]:
    backlog = GaugeMetricFamily(
        "bruce_topic_backlog_messages",
        f"Messages that wait, of the {MOST_TOPICS} topics that have most; the rest is {OTHER_TOPICS}.",
        labels=["topic"],
    )
    waiting: Counter[str] = Counter()
    for topic, count in figures.report.topics:
        # Two that are shown alike are one series.
        waiting[shown_name(topic)] += count
    most = dict(waiting.most_common(MOST_TOPICS))
    if others := waiting.total() - sum(most.values()):
        most[OTHER_TOPICS] = most.get(OTHER_TOPICS, 0) + others
    for name, count in most.items():
        backlog.add_metric([name], count)
    yield backlog
    yield _by_topic("received", "Messages that came", figures.received_by_topic)
    yield _by_topic("delivered", "Messages that Kafka acknowledged", figures.delivered_by_topic)


def _by_topic(event: str, text: str, counts: Mapping[bytes, int]) -> Metric:
    """Counts since the first look of this process: each series only grows, and stays."""
    family = CounterMetricFamily(
        f"bruce_topic_messages_{event}",
        f"{text} since this status worker was first asked, of {MOST_TOPICS} topics; the rest is "
        f"{OTHER_TOPICS}. Messages of segments that were removed between two scrapes are missing.",
        labels=["topic"],
    )
    sums: Counter[str] = Counter()
    for topic, count in counts.items():
        sums[shown_name(topic)] += count
    for name, count in sums.items():
        family.add_metric([name], count)
    return family


def _brokers(figures: Figures) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "bruce_broker_state", "1 for the state that a broker is in.", labels=["broker", "state"]
    )
    acked = CounterMetricFamily(
        "bruce_broker_messages_acknowledged",
        "Messages that a broker acknowledged since the delivery worker was started.",
        labels=["broker"],
    )
    flying = GaugeMetricFamily(
        "bruce_broker_in_flight_messages", "Messages sent and not answered.", labels=["broker"]
    )
    for broker in figures.report.snapshot.brokers:
        number = str(broker.id)
        for name in STATES:
            state.add_metric([number, name], name == broker.state)
        acked.add_metric([number], broker.acknowledged)
        flying.add_metric([number], broker.in_flight)
    yield from (state, acked, flying)


def _times(figures: Figures) -> Iterator[Metric]:
    """Times that librdkafka measured; a quantile of nothing is NaN, as in Prometheus' own clients."""
    for field, text in _TIMES.items():
        family = SummaryMetricFamily(f"bruce_broker_{field}_seconds", text, labels=["broker"])
        for broker in figures.report.snapshot.brokers:
            times: TimesView = getattr(broker, field)
            number = str(broker.id)
            for quantile, value in (("0.5", times.median), ("0.99", times.p99)):
                shown = math.nan if value is None else value
                family.add_sample(family.name, {"broker": number, "quantile": quantile}, shown)
            family.add_metric([number], times.count, times.seconds)
        yield family


def _counted(counted: Counted) -> Iterator[Metric]:
    yield _histogram("bruce_message_size_bytes", "Size of the messages that were stored.", counted.sizes)
    yield _histogram(
        "bruce_delivery_latency_seconds",
        "From the reception of a message to its acknowledgement by Kafka.",
        counted.latency,
    )
    yield CounterMetricFamily(
        "bruce_router_messages",
        "Messages that the router has given to the producer, those sent again included.",
        counted.handed_over,
    )
    asked = CounterMetricFamily(
        "bruce_metadata_requests", "How often Kafka was asked for its metadata, by result.", labels=["result"]
    )
    asked.add_metric(["answered"], counted.metadata_answers)
    asked.add_metric(["failed"], counted.metadata_failures)
    yield asked
    fetched = GaugeMetricFamily(
        "bruce_metadata_timestamp_seconds", "When Kafka's metadata came, and changed, last.", labels=["event"]
    )
    fetched.add_metric(["fetched"], counted.metadata_ns / 1e9)
    fetched.add_metric(["changed"], counted.metadata_changed_ns / 1e9)
    yield fetched


def _histogram(name: str, text: str, found: Histogram) -> HistogramMetricFamily:
    bounds = [*map(floatToGoString, found.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(found.counts), strict=True))
    return HistogramMetricFamily(name, text, buckets, found.total)


def _processes(figures: Figures) -> Iterator[Metric]:
    alive = GaugeMetricFamily("bruce_worker_up", "1 while a process of the daemon runs.", labels=["role"])
    restarts = CounterMetricFamily("bruce_worker_restarts", "How often it ended by itself.", labels=["role"])
    silent = GaugeMetricFamily(
        "bruce_worker_silent_seconds",
        "For how long a process has done nothing; 0 while it works.",
        labels=["role"],
    )
    for worker in figures.report.snapshot.workers:
        alive.add_metric([worker.role], worker.alive)
        silent.add_metric([worker.role], worker.silent_seconds or 0.0)
        restarts.add_metric([worker.role], worker.restarts)
    busy = CounterMetricFamily(
        "bruce_stage_cpu_seconds",
        "Processor time of each stage of the way; its rate is the share of a processor that it takes.",
        labels=["stage"],
    )
    for stage in figures.stages:
        busy.add_metric([stage.stage], stage.cpu_seconds)
    yield from (alive, silent, restarts, busy)


def _tiers(witness: WitnessView) -> Iterator[Metric]:
    yield _gauge(
        "bruce_witness_timestamp_seconds",
        "When the witness wrote its document; 0 without one that can be read.",
        witness.written_s,
    )
    alive = GaugeMetricFamily(
        "bruce_witness_tier_up", "1 while the witness can read a tier.", labels=["tier"]
    )
    lag = GaugeMetricFamily(
        "bruce_witness_lag_records", "Offsets of a tier that the witness has not read yet.", labels=["tier"]
    )
    records = CounterMetricFamily(
        "bruce_witness_records",
        "Records of a tier that the witness has read, and that name a message.",
        labels=["tier"],
    )
    skipped = CounterMetricFamily(
        "bruce_witness_skipped_offsets",
        "Offsets of a tier that Kafka deleted before the witness had read them.",
        labels=["tier"],
    )
    for one in witness.tiers:
        alive.add_metric([one.tier], not one.error)
        lag.add_metric([one.tier], one.lag)
        records.add_metric([one.tier], one.records)
        skipped.add_metric([one.tier], one.skipped)
    yield from (alive, lag, records, skipped)


def _verdicts(witness: WitnessView) -> Iterator[Metric]:
    """Those of each spool, or of the worst, and sums of the others."""
    rows = [(tier.tier, spool) for tier, spool in witness.rows]
    rows, rest = rows[:MOST_SPOOLS], rows[MOST_SPOOLS:]
    for name in dict.fromkeys(tier for tier, _ in rest):
        others = summed(spool.verdict for tier, spool in rest if tier == name)
        rows.append((name, SpoolView(OTHER_TOPICS, "", others)))
    for ending, text in _VERDICTS.items():
        family = GaugeMetricFamily(f"bruce_witness_{ending}", text, labels=["tier", "spool", "host"])
        field = ending.removesuffix("_messages")
        for tier, spool in rows:
            family.add_metric([tier, spool.spool, spool.host], getattr(spool.verdict, field))
        yield family
