"""The report's shape: documented, with every optional part; names of topics; sentences about processes."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from ingest.buffers.connection_buffer import CLOSINGS
from spool.words import MOST_TOPIC
from status import report as module
from status.health import Complaint
from status.report import (
    MOST_TOPICS,
    AckView,
    BrokerView,
    ConnectionsView,
    FullView,
    InputView,
    KafkaView,
    LastTrouble,
    LentView,
    OtherRelease,
    Report,
    SenderView,
    Snapshot,
    TimesView,
    WorkerView,
    named,
    shown_name,
)
from tests.status.test_api import check
from tests.status.test_health import HEALTHY, WELL
from tests.status.test_witness import spool, tier, view

ODD = b"\xffodd"
TIME = "2026-11-21T16:45:00Z"
TIMES = TimesView(3, 0.5, 0.1, 0.2)
FILLED = replace(
    WELL,
    full=[FullView("quota", "t", TIME, "the quota is reached")],
    disk="the disk refuses",
    lost_inputs="programs do not reach it",
    workers=[WorkerView("keeper", 10, 4, True, 14.2, waits_for_disk=True)],
    brokers=[BrokerView(1, "healthy", 5, 2, 4, TIMES, TIMES, TIMES)],
    trouble="no broker can be reached",
    acknowledgements=AckView(5, 4, 1, 0, 2),
    kafka=KafkaView(4, 5, 1, 0, 2),
    lent=LentView(77, "host", TIME, 9),
    other_release=OtherRelease(77, "brucepg9", "brucepg6"),
    senders=[SenderView("1001", 9, {"short": 1})],
    inputs=[
        InputView("datagram", 9, 1, None),
        InputView("tcp", 1, 0, ConnectionsView(2, 1, dict.fromkeys(CLOSINGS, 1), 0)),
    ],
)
REPORT = replace(
    HEALTHY,
    snapshot=FILLED,
    topics=((b"t", 2), (ODD, 1)),
    last_trouble=LastTrouble("no broker", TIME),
    awaited="1 topic may still come",
    witness=view(tier("main", spool(missing=1)), tier("lake", error="away"), problem="it has stopped"),
)
LEAST = replace(HEALTHY, minute=None, quarter_hour=None, oldest=None, room=None, topics=())


def keys_in(document: object) -> set[str]:
    """The names of all fields, but for those that are words themselves: reasons, and ways to end."""
    if isinstance(document, list):
        return set[str]().union(*map(keys_in, document))
    if not isinstance(document, dict):
        return set()
    inner = [value for name, value in document.items() if name not in ("discarded", "closed")]
    return {*document}.union(*map(keys_in, inner))


@pytest.mark.parametrize("report", [REPORT, LEAST], ids=["everything", "nothing"])
def test_it_is_json_of_the_schema(report: Report) -> None:
    """With each optional part there, and with none; not only as a daemon at work has them."""
    document = report.as_json([Complaint("old", "it has waited for long")])
    check("status", document)
    assert json.loads(json.dumps(document)) == document


def test_a_document_has_so_many_topics() -> None:
    """Senders name them: beyond some there is one row of all the rest, and nothing is lost in sum."""
    many = [(b"t%d" % number, 3) for number in range(MOST_TOPICS + 7)]
    topics = replace(REPORT, topics=many).as_json([])["topics"]
    assert len(topics) == MOST_TOPICS + 1
    assert topics[-1] == {"topic": "(others)", "backlog": 21}
    assert sum(one["backlog"] for one in topics) == 3 * len(many)


def test_each_field_is_documented() -> None:
    """The docstring, which users read, names every field of the JSON, and no other."""
    told = set(re.findall(r'"(\w+)"', (module.__doc__ or "").split("Times are UTC")[0]))
    told |= set(
        re.findall(
            r'"(\w+)"', (module.__doc__ or "").split("gives its first part:")[1].split("Watermarks")[0]
        )
    )
    found = keys_in(REPORT.as_json([Complaint("old", "x")]))
    assert found - told == {"topic_base64"}
    assert told <= found


def test_the_complaints_make_it_unhealthy() -> None:
    """Without one the spool is healthy; with some, each is in there as condition and sentence."""
    assert (LEAST.as_json([])["healthy"], LEAST.as_json([])["unhealthy"]) == (True, [])
    found = LEAST.as_json([Complaint("old", "x"), Complaint("disk", "y")])
    assert found["healthy"] is False
    assert found["unhealthy"] == [
        {"condition": "old", "sentence": "x"},
        {"condition": "disk", "sentence": "y"},
    ]


def test_no_field_hides_another() -> None:
    """The JSON has the fields of the snapshot and its own beside each other, and none twice."""
    assert {one.name for one in fields(Report)} & {one.name for one in fields(Snapshot)} == set()
    document, snapshot = REPORT.as_json([]), FILLED.as_json()
    assert {name: document[name] for name in snapshot} == snapshot


@pytest.mark.parametrize("topic", [b"t", "größe".encode(), ODD, b""])
def test_no_name_of_a_topic_is_lost(topic: bytes) -> None:
    """One that is no UTF-8 is in base64, under another field."""
    ((field, name),) = named(topic).items()
    assert (name.encode() if field == "topic" else base64.b64decode(name)) == topic
    assert field == ("topic_base64" if topic == ODD else "topic")


def test_a_label_is_bounded_and_text() -> None:
    """Other bytes are escaped, and a longer name is cut: a page and a metric can show any topic."""
    assert shown_name(ODD) == "\\xffodd"
    assert len(shown_name(b"n" * 30_000)) <= MOST_TOPIC < len(b"n" * 30_000)
    assert shown_name(b"n" * 30_000).startswith("nnn")


@pytest.mark.parametrize(
    ("worker", "hangs", "sentence"),
    [
        (WorkerView("keeper", 10, 0, alive=True), False, ""),
        (WorkerView("keeper", 10, 0, True, 14.2), True, "the keeper worker (10) has done nothing for 14 s"),
        (
            WorkerView("keeper", 10, 0, True, 14.2, waits_for_disk=True),
            False,
            "the keeper worker (10) has waited for the disk for 14 s",
        ),
        (WorkerView("keeper", 0, 4, alive=False), False, "the keeper worker is not running"),
    ],
)
def test_a_worker_hangs_or_waits(worker: WorkerView, *, hangs: bool, sentence: str) -> None:
    """The disk excuses a silence; a worker that works has no sentence; one that is gone has that one."""
    assert (worker.hangs, worker.sentence) == (hangs, sentence)


@pytest.mark.parametrize(("pid", "words"), [(77, "(process 77; "), (0, "(its process is not known; ")])
def test_a_daemon_of_another_release(pid: int, words: str) -> None:
    """Its process, both formats, and what to do; in JSON the facts without the sentence."""
    other = OtherRelease(pid, "brucepg9", "brucepg6")
    assert words in other.sentence
    assert "its page is brucepg9, ours is brucepg6): restart the daemon" in other.sentence
    told = replace(WELL, other_release=other).as_json()["other_release"]
    assert told == {"pid": pid, "page": "brucepg9", "own": "brucepg6"}


def test_a_look_stays_as_it_was() -> None:
    """One snapshot serves several answers of the page; none of them changes it."""
    with pytest.raises(FrozenInstanceError):
        WELL.backlog = 4  # type: ignore[misc]
    WELL.as_json()["discarded"]["short"] = 99
    WELL.as_json()["workers"].clear()
    assert (WELL.discarded, len(WELL.workers)) == ({"short": 1}, 4)
