"""/metrics, the alert rules and the dashboard: they agree on names, and each alert fires."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dispatch.topic_settings import Lateness
from spool.format.wire import encode
from spool.shared.histogram import LATENCY_SECONDS, SIZE_BYTES, Histogram
from status import health
from status.figures import Counted, Figures, Stage, release
from status.health import Health, Limits, complaints
from status.metrics import CONDITIONS, MOST_SPOOLS, OTHER_TOPICS, STATES, exposition
from status.report import OldestView, Report, RoomView, TimesView, WorkerView
from status.witness import WitnessView
from tests.daemon import PATIENCE_S
from tests.status.conftest import EVIL, Served
from tests.status.promql import Labels, holds, read
from tests.status.test_health import FULL, HEALTHY, WELL, but
from tests.status.test_witness import OTHER, SPOOL, spool, tier, view

TIMES = ("round_trip", "queue", "throttle")
ROOT = Path(__file__).resolve().parents[2]
METRICS = ROOT / "docs/monitoring/metrics.md"
RULES = ROOT / "docs/monitoring/alerts.yml"
DASHBOARD = json.loads((ROOT / "docs/monitoring/grafana.json").read_text())
ROWS = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel not in ROWS]
PANELS += [panel for row in ROWS for panel in row["panels"]]
"""Those that a click shows, too."""
ALERTS = {
    rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
}
FRESH_S = time.time() + 86_400
"""When documents were written: they stay fresh, however long the tests before these take."""
FINE = replace(but(brokers=[replace(WELL.brokers[0], state="healthy")]), witness=view(written_s=FRESH_S))


def witnessed(*tiers: dict[str, Any], written_s: float = FRESH_S) -> Report:
    """A bruce in order, beside a witness with this verdict."""
    return replace(FINE, witness=view(*tiers, written_s=written_s))


def counted(quick: int, slow: int) -> Counted:
    """Counts of messages acknowledged within 5 s, and of later ones."""
    counts = [0] * (len(LATENCY_SECONDS) + 1)
    counts[LATENCY_SECONDS.index(5.0)], counts[LATENCY_SECONDS.index(10.0)] = quick, slow
    sizes = Histogram(tuple(map(float, SIZE_BYTES)), (*[0] * len(SIZE_BYTES), 0), 0)
    return Counted(sizes, Histogram(LATENCY_SECONDS, tuple(counts), 1.0), quick + slow, 0, 0)


WELL_COUNTED = counted(199, 1)


def figures_of(
    report: Report, counts: Counted = WELL_COUNTED, by_topic: Mapping[bytes, int] | None = None
) -> Figures:
    """A look at a bruce in this state."""
    return Figures(
        report=report,
        unhealthy=complaints(report, Limits()),
        stages=[Stage("router", 1.5, None)],
        inputs={"datagram": None},
        out_per_second=None,
        topics=[],
        brokers={},
        points=[],
        step_s=5,
        reasons=("short", "too_large"),
        counted=counts,
        received_by_topic=by_topic or {},
        delivered_by_topic=by_topic or {},
    )


def scrape(
    report: Report,
    *,
    up: int = 1,
    counts: Counted = WELL_COUNTED,
    by_topic: Mapping[bytes, int] | None = None,
) -> dict[str, dict[Labels, float]]:
    """The series that Prometheus scrapes from a bruce in this state."""
    figures = figures_of(report, counts, by_topic)
    found = read(exposition(figures, Health([], [], 0, held=False)), instance="h", job="bruce") if up else {}
    return {**found, "up": {frozenset({"instance": "h", "job": "bruce"}.items()): float(up)}}


def restarted(count: int) -> Report:
    """The report of a daemon whose delivery worker has ended `count` times."""
    return replace(
        FINE,
        snapshot=replace(FINE.snapshot, workers=[WorkerView("delivery", 10, count, alive=True)]),
    )


CASES: dict[str, Report | None] = {
    "BruceDown": None,
    "BruceWorkerDown": but(workers=[WorkerView("keeper", 10, 0, alive=False)], brokers=FINE.snapshot.brokers),
    "BruceInputLost": but(lost_inputs="programs do not reach", brokers=FINE.snapshot.brokers),
    "BruceWorkerRestarts": restarted(4),
    "BruceCannotDeliver": replace(FINE, snapshot=replace(FINE.snapshot, trouble="no broker can be reached")),
    "BruceMessagesOld": replace(FINE, oldest=OldestView(5, "2026-11-21T16:44:59Z", 901)),
    "BruceTooLate": replace(FINE, lateness={b"t": Lateness(600, None)}, oldest_records={b"t": 601}),
    "BruceFilling": replace(FINE, room=RoomView(1000, 10, 0.9)),
    "BruceFull": replace(FINE, snapshot=replace(FINE.snapshot, full=[FULL])),
    "BruceDiscards": replace(FINE, snapshot=replace(FINE.snapshot, discarded={"short": 1, "too_large": 1})),
    "BruceDisk": replace(FINE, snapshot=replace(FINE.snapshot, disk="the disk refuses")),
    "BruceMarksUnreadable": replace(FINE, marked=False),
    "BruceWitnessMissing": witnessed(tier("main", spool(missing=3))),
    "BruceWitnessAltered": witnessed(tier("main", spool(altered_blocks=1))),
    "BruceWitnessBehind": witnessed(tier("main", lag=1)),
    "BruceWitnessSkipped": witnessed(tier("main", skipped=5)),
    "BruceWitnessCannotRead": witnessed(tier("main", error="no broker can be reached")),
    "BruceWitnessStopped": witnessed(written_s=time.time() - 301),
    "BruceSlow": FINE,
    "BruceThrottled": replace(
        FINE,
        snapshot=replace(
            FINE.snapshot, brokers=[replace(FINE.snapshot.brokers[0], throttle=TimesView(1, 0.2))]
        ),
    ),
    "BruceBrokerAway": HEALTHY,
}
WITHOUT_RULE = {
    "stopped": "a bruce that is stopped has no metrics: BruceDown",
    "release": "the metrics are those of the running release, which it compares with no other",
    "old": "BruceMessagesOld has the age itself, and says it",
    "discards": "BruceDiscards counts by reason, and says it",
    "witness": "BruceWitnessMissing and BruceWitnessAltered have the tier and the host, and say them",
}
"""Conditions without a rule of their own, and why."""
LATE = {"BruceSlow": counted(299, 3)}
"""The counts at the later scrape, for alerts that depend on them."""


def firing(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """The alerts that fire, with their labels."""
    found = {name: holds(rule["expr"], before, now) for name, rule in ALERTS.items()}
    return {name: labels for name, labels in found.items() if labels}


def test_the_release_is_a_label() -> None:
    """`bruce_build_info` is 1, and its one label is the release, by which a dashboard tells hosts apart."""
    found = scrape(FINE)["bruce_build_info"]
    assert found == {frozenset({"instance": "h", "job": "bruce", "version": release()}.items()): 1.0}
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+\S*", release())


def test_a_count_by_topic_says_since_when(served: Served) -> None:
    """Its HELP text says that the count is this status worker's, and which messages it misses."""
    text = served.get("/metrics").body.decode()
    for event in ("received", "delivered"):
        (said,) = re.findall(rf"# HELP bruce_topic_messages_{event}_total (.*)", text)
        assert "since this status worker was first asked" in said
        assert "segments that were removed between two scrapes are missing" in said


def test_nothing_fires_when_all_is_well() -> None:
    """No alert fires for a bruce at work."""
    assert firing(scrape(restarted(0)), scrape(FINE)) == {}


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_each_alert_fires(name: str) -> None:
    """It fires in the state that it is for, without another alert; it names the host."""
    report = CASES[name]
    now = scrape(report or FINE, up=int(report is not None), counts=LATE.get(name, WELL_COUNTED))
    found = firing(scrape(restarted(0)), now)
    assert set(found) == {name}
    assert all(labels["instance"] == "h" for labels in found[name])
    assert "{{ $labels.instance }}" in ALERTS[name]["annotations"]["summary"]


def test_every_condition_has_an_alert() -> None:
    """The alert rules leave none out, unless WITHOUT_RULE says why."""
    told = re.findall(r"^    (\w+) {2,}\S", health.__doc__ or "", re.MULTILINE)
    assert tuple(told) == CONDITIONS
    ruled = re.findall(r'condition="(\w+)"', RULES.read_text())
    assert sorted([*ruled, *WITHOUT_RULE]) == sorted(CONDITIONS)


def test_nothing_fires_for_a_verdict_that_is_in_order() -> None:
    """Messages that are late, or there twice, and blocks that cannot be compared: no alert fires."""
    told = witnessed(tier("main", spool(late=9, duplicated=9, uncompared_blocks=9)))
    assert firing(scrape(restarted(0)), scrape(told)) == {}


def test_a_witness_without_a_document_has_stopped() -> None:
    """The alert fires when the document is gone, or cannot be read: its series do not just end."""
    gone = replace(FINE, witness=WitnessView(problem="it cannot be read"))
    assert set(firing(scrape(restarted(0)), scrape(gone))) == {"BruceWitnessStopped"}


def test_the_witness() -> None:
    """Each figure of each spool by tier, and those of tiers; none where no witness is configured."""
    counts = {
        "judged": 9,
        "missing": 1,
        "late": 2,
        "duplicated": 3,
        "altered_blocks": 4,
        "uncompared_blocks": 5,
    }
    east = tier("east", spool(host='b"\\'), spool(OTHER, "b", **counts), lag=7, records=8, skipped=9)
    found = scrape(witnessed(east, tier("west", error="away")))

    def values(name: str) -> dict[tuple[str, ...], float]:
        own = ("instance", "job")
        return {
            tuple(value for key, value in sorted(at) if key not in own): n
            for at, n in found[f"bruce_witness_{name}"].items()
        }

    for name, count in counts.items():
        unit = "" if name.endswith("blocks") else "_messages"
        assert values(name + unit)["b", OTHER, "east"] == count
        assert len(values(name + unit)) == 3
    assert values("judged_messages")['b"\\', SPOOL, "east"] == 40
    assert values("lag_records") == {("east",): 7, ("west",): 0}
    assert values("records_total") == {("east",): 8, ("west",): 40}
    assert values("skipped_offsets_total") == {("east",): 9, ("west",): 0}
    assert values("tier_up") == {("east",): 1, ("west",): 0}
    assert values("timestamp_seconds")[()] == FRESH_S
    assert not [name for name in scrape(replace(FINE, witness=None)) if "witness" in name]


def test_spools_without_number() -> None:
    """A fleet makes no series without bound: the worst have their own, and the others of a tier share one."""
    fleet = [spool(f"{n:032x}", missing=int(n == MOST_SPOOLS + 7)) for n in range(MOST_SPOOLS + 10)]
    found = scrape(witnessed(tier("main", *fleet)))
    judged = {dict(at)["spool"]: n for at, n in found["bruce_witness_judged_messages"].items()}
    missing = {dict(at)["spool"]: n for at, n in found["bruce_witness_missing_messages"].items()}
    assert len(judged) == MOST_SPOOLS + 1
    assert judged[OTHER_TOPICS] == 10 * 40
    assert {uuid for uuid, n in missing.items() if n} == {f"{MOST_SPOOLS + 7:032x}"}


def test_promtool() -> None:
    """Prometheus itself accepts the rules."""
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("there is no promtool")
    done = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_condition_has_a_series() -> None:
    """An alert on a condition sees 0, not an absent series; so does one on the states of a broker."""
    found = scrape(FINE)
    conditions = {dict(labels)["condition"] for labels in found["bruce_unhealthy"]}
    assert conditions == set(CONDITIONS)
    assert {dict(labels)["state"] for labels in found["bruce_broker_state"]} == set(STATES)


def test_figures(served: Served) -> None:
    """A daemon's metrics match its traffic, and follow Prometheus' conventions for names."""
    answer = served.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.body.decode()))
    for family in families:
        assert re.fullmatch(r"bruce_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        assert not family.name.endswith("_total")
        if family.type == "counter":
            assert {sample.name for sample in family.samples} <= {f"{family.name}_total"}
        if family.type in ("histogram", "summary"):
            assert family.name.endswith(("_seconds", "_bytes"))
    seen = read(answer.body)
    assert seen["bruce_messages_received_total"][frozenset()] == 43
    assert seen["bruce_messages_delivered_total"][frozenset()] == 40
    discarded = {dict(labels)["reason"]: n for labels, n in seen["bruce_messages_discarded_total"].items()}
    assert {reason: n for reason, n in discarded.items() if n} == {"short": 1, "size": 1, "unknown_topic": 1}
    assert seen["bruce_watermark_sequence"][frozenset({("level", "delivered")})] == 41
    stages = {dict(labels)["stage"] for labels in seen["bruce_stage_cpu_seconds_total"]}
    assert stages >= {"datagram", "keeper", "router", "status"}
    assert sum(seen["bruce_broker_messages_acknowledged_total"].values()) == 40
    assert seen["bruce_router_messages_total"][frozenset()] == 40
    assert seen["bruce_delivery_latency_seconds_count"][frozenset()] == 40
    assert 0 < seen["bruce_delivery_latency_seconds_sum"][frozenset()] < 40 * PATIENCE_S
    # The message of an unknown topic was stored, too; the malformed ones were not.
    assert seen["bruce_message_size_bytes_count"][frozenset()] == 41
    sizes = [len(encode(b"t", b"%d" % n)) for n in range(40)] + [len(encode(EVIL, b"v"))]
    assert seen["bruce_message_size_bytes_sum"][frozenset()] == sum(sizes)
    within = seen["bruce_message_size_bytes_bucket"][frozenset({("le", "64.0")})]
    assert within == sum(size <= 64 for size in sizes)
    metadata = seen["bruce_metadata_timestamp_seconds"]
    asked = seen["bruce_metadata_requests_total"]
    assert asked[frozenset({("result", "answered")})] > 0
    assert frozenset({("result", "failed")}) in asked
    assert 0 < metadata[frozenset({("event", "changed")})] <= metadata[frozenset({("event", "fetched")})]
    assert abs(seen["bruce_start_time_seconds"][frozenset()] - served.bruce.config.stat().st_mtime) < 600


def test_bounds_are_documented() -> None:
    """docs/monitoring/metrics.md has each bound of the latency, and the ends of the sizes."""
    row = next(line for line in METRICS.read_text().splitlines() if "bruce_delivery_latency_seconds" in line)
    units = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
    bounds, waiting = [], list[float]()
    for word in row.split("|")[3].replace(",", "").split():
        if word in units:
            bounds += [units[word] * number for number in waiting]
            waiting = []
        else:
            waiting.append(float(word))
    assert tuple(bounds) == pytest.approx(LATENCY_SECONDS)
    assert (SIZE_BYTES[0], SIZE_BYTES[1], SIZE_BYTES[-1]) == (64, 128, 16 << 20)


def test_what_brokers_took(served: Served) -> None:
    """Round trip, queue and throttle time of each broker, in seconds, from librdkafka's statistics."""

    def told() -> bool:
        seen = read(served.get("/metrics").body)
        counts = {name: sum(seen[f"bruce_broker_{name}_seconds_count"].values()) for name in TIMES}
        return counts["round_trip"] > 0 and counts["queue"] == 40

    served.bruce.await_true(told)
    seen = read(served.get("/metrics").body)
    brokers = {dict(labels)["broker"] for labels in seen["bruce_broker_state"]}
    for name in TIMES:
        quantiles = {
            (dict(at)["broker"], dict(at)["quantile"]) for at in seen[f"bruce_broker_{name}_seconds"]
        }
        assert quantiles == {(broker, quantile) for broker in brokers for quantile in ("0.5", "0.99")}
    # Messages linger for 20 ms; in a wrong unit, the figure would be off by a thousand.
    mean = sum(seen["bruce_broker_queue_seconds_sum"].values()) / 40
    assert 0.001 < mean < 20
    assert sum(seen["bruce_broker_throttle_seconds_sum"].values()) == 0


def test_a_crash_loses_no_counts(served: Served) -> None:
    """SIGKILL of the workers that count: their former counts are there, and more is added to them."""
    before = served.bruce.status()
    for role in ("ingest", "delivery"):
        pid = next(worker.pid for worker in before.workers if worker.role == role)
        os.kill(pid, signal.SIGKILL)
    served.bruce.send(encode(b"t", b"later") for _ in range(5))
    served.bruce.await_status(lambda s: s.delivered == before.delivered + 5)

    def counts() -> list[float]:
        seen = read(served.get("/metrics").body)
        names = ("bruce_delivery_latency_seconds_count", "bruce_message_size_bytes_count")
        return [seen[name][frozenset()] for name in names]

    served.bruce.await_true(lambda: counts() == [45, 46])


def test_the_dashboard_asks_for_what_is_there(served: Served) -> None:
    """Each expression of the dashboard, and of the rules, uses names that /metrics has."""
    # The delivery worker tells of brokers a moment after it told what they took.
    served.bruce.await_true(
        lambda: b"bruce_broker_messages_acknowledged_total{" in served.get("/metrics").body
    )
    body = served.get("/metrics").body
    seen = set(read(body)) | {family.name for family in text_string_to_metric_families(body.decode())}
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    assert len(expressions) > 15
    for expression in [*expressions, *(rule["expr"] for rule in ALERTS.values())]:
        assert set(re.findall(r"\bbruce_\w+", expression)) <= seen, expression


def test_the_dashboard_is_laid_out() -> None:
    """No panel overlaps another or exceeds the width; each row is full; no range is shorter than a scrape."""
    taken = set[tuple[int, int]]()
    for panel in [*PANELS, *ROWS]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", ()):
            assert (
                "rate(" not in target["expr"]
                or "[$__rate_interval]" in target["expr"]
                or "[5m]" in target["expr"]
            )
    assert taken == {(x, y) for x in range(24) for y in range(max(y for _, y in taken) + 1)}


def test_a_figure_is_red_for_a_reason() -> None:
    """Each stat names its thresholds or its colour: otherwise Grafana paints it red from 80 on."""
    figures = [panel for panel in PANELS if panel["type"] == "stat"]
    assert figures
    for panel in figures:
        defaults = panel["fieldConfig"]["defaults"]
        assert "thresholds" in defaults or "color" in defaults, panel["title"]


def test_prometheus_takes_the_dashboard(tmp_path: Path) -> None:
    """Prometheus accepts each of its expressions, once Grafana has filled in the variables."""
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("there is no promtool")
    chosen = {"$__rate_interval": "1m", "$instance": ".*"}
    rules = []
    for number, panel in enumerate(PANELS):
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in chosen.items():
                expression = expression.replace(name, value)
            rules.append({"record": f"panel:{number}", "expr": expression})
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=none", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_messages_by_topic(served: Served) -> None:
    """Received and delivered, from the first scrape on."""

    def told() -> list[float]:
        seen = read(served.get("/metrics").body)
        names = ("bruce_topic_messages_received_total", "bruce_topic_messages_delivered_total")
        return [seen.get(name, {}).get(frozenset({("topic", "u")}), 0) for name in names]

    assert told() == [0, 0]
    served.bruce.send([*(encode(b"u", b"v") for _ in range(7)), encode(b"t", b"v")])
    served.bruce.await_true(lambda: told() == [7, 7])
