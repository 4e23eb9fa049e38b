"""Dory's paths: scripts that read its JSON find the fields they know."""

from __future__ import annotations

import base64
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import Reason
from status.dory import REPORT_S, DiscardReports, queues
from tests.daemon import free_port
from tests.status.conftest import EVIL, Served, serve
from tests.status.test_health import HEALTHY
from tests.status.test_metrics import figures_of

LISTED = Path(__file__).resolve().parents[2] / "docs/monitoring/dory.md"
HEAD = ["pid", "version", "since", "now"]
REPORT = [
    "id",
    "start_time",
    "malformed_msg_count",
    "unix_stream_unclean_disconnect_count",
    "tcp_unclean_disconnect_count",
    "unsupported_api_key_msg_count",
    "unsupported_version_msg_count",
    "bad_topic_msg_count",
    "recent_malformed",
    "unix_stream_unclean_disconnect",
    "tcp_unclean_disconnect",
    "unsupported_msg_version",
    "recent_bad_topic",
    "recent_too_long_msg",
    "rate_limit_discard",
    "discard_topic",
    "possible_duplicate_topic",
]


def test_server_info(served: Served) -> None:
    """The supervisor's pid, the release, when it was started, and now."""
    found = served.get("/server_info/json").json()
    assert list(found) == HEAD
    assert found["pid"] == served.bruce.pid
    assert 0 <= found["now"] - found["since"] < 3600


def test_counters(served: Served) -> None:
    """Counters with the meaning of Dory's have Dory's names; they are in plain text, too."""
    found = served.get("/counters/json").json()
    assert list(found) == [*HEAD, "counters"]
    values = {one["name"]: one["value"] for one in found["counters"]}
    # The worker also asks without a request.
    assert values.pop("GetMetadataSuccess") > 0
    values.pop("GetMetadataFail")
    assert {name: value for name, value in values.items() if value} == {
        "MsgCreate": 41,
        "MsgDestroy": 41,
        "UnixDgInputAgentForwardMsg": 41,
        "InputAgentDiscardMsgMalformed": 2,
        "DiscardBadTopicMsgOnRoute": 1,
    }
    assert b".UnixDgInputAgentForwardMsg=41\n" in served.get("/counters/plain").body


def test_the_list_of_counters(served: Served) -> None:
    """docs/monitoring/dory.md names each served counter, the one or the other way, and no absent one.

    This daemon has no streams: their counters are there all the same, since Dory's script demands the same
    names in each answer.
    """
    counters = LISTED.read_text().split("## Counters")[1]
    counters, absent = counters.split("## Absent")
    with_meaning, without = map(named, counters.split("## Always 0"))
    found = [(one["name"], one["value"]) for one in served.get("/counters/json").json()["counters"]]
    assert len(found) == len(dict(found))
    assert dict(found).keys() == with_meaning | without
    assert not any(dict(found)[name] for name in without)
    gone = named(absent)
    assert not gone & dict(found).keys()
    assert not [
        (name, one)
        for name in with_meaning
        for one in gone
        if one.endswith("...") and name.startswith(one[:-3])
    ]


@pytest.mark.parametrize("name", ["MetadataSanityCheckFail", "ConnectorSocketError", "TcpInputSocketError"])
def test_what_the_script_looks_for(served: Served, name: str) -> None:
    """Dory's check_dory_counters.py ends as UNKNOWN at the first of its counters that is missing."""
    assert any(one["name"] == name for one in served.get("/counters/json").json()["counters"])


def named(text: str) -> set[str]:
    """Counters that the first column of a table names."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


def test_queues(served: Served) -> None:
    """The queues are empty."""
    found = served.get("/queues/json").json()
    assert list(found) == [*HEAD, "sending", "new"]
    assert (found["sending"], found["new"]) == ([], 0)


def test_discards(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A report has all of Dory's fields; discards before the first request are in it.

    As in Dory, an impossible size ends a connection, whether or not it is the first bytes of TLS; the
    report counts it as malformed, the counter of malformed messages does not.
    """
    tcp = free_port()
    bruce, port = serve(tmp_path, kafka, {"ingest": {"tcp_port": tcp, "max_stream_message_bytes": 100_000}})
    with bruce:
        served = Served(bruce, port)
        bruce.await_true(served.answers)
        # After the look that begins the first report.
        assert served.get("/api/v1/discards").json()["discards"] == []
        bruce.send([b"short"])
        sent = [b"\x16\x03\x01\x00\xf8\x01", b"GET / HTTP/1.1\r\n", b"\x7f\xff\xff\xff", *[b"\0\0\0\3"] * 2]
        heard = b""
        for data in sent:
            with socket.create_connection(("127.0.0.1", tcp)) as connection:
                connection.sendall(data)
                heard += connection.recv(2)
        assert list(heard) == [Reason.TLS, Reason.HTTP, Reason.TOO_LONG, *[Reason.BAD_SIZE] * 2]

        def rows() -> list[str]:
            return [row["reason"] for row in served.get("/api/v1/discards").json()["discards"]]

        bruce.await_status(lambda s: sum(s.discarded.values()) == 6)
        bruce.await_true(lambda: len(rows()) == 5)
        found = served.get("/discards/json").json()
        counters = {one["name"]: one["value"] for one in served.get("/counters/json").json()["counters"]}
    assert list(found) == [*HEAD, "interval", "unfinished_report"]
    assert list(found["unfinished_report"]) == REPORT
    assert found["unfinished_report"]["malformed_msg_count"] == 6
    recent = [base64.b64decode(data) for data in found["unfinished_report"]["recent_malformed"]]
    assert sorted(recent) == sorted({b"short", *sent})
    assert (counters["TcpInputMsgBodyTooLarge"], counters["TcpInputInvalidSizeField"]) == (3, 2)
    assert (counters["NewTcpClient"], counters["InputAgentDiscardMsgMalformed"]) == (5, 1)


def test_topics_that_are_shown_alike() -> None:
    """Names are cut as brucectl cuts them; those that are cut to the same are one row, with their sum."""
    cut, longer = "t" * 248 + "…", "t" * 300
    waits = queues(figures_of(replace(HEALTHY, topics=((longer.encode(), 2), (b"t" * 301, 3)))))
    assert waits["sending"] == [{"topic": cut, "batch": 0, "send_wait": 5, "ack_wait": 0}]
    times = ("2023-11-14T22:13:30.000000001Z", "2023-11-14T22:13:31.000000001Z")

    def listing(messages: int) -> dict[str, list[dict[str, object]]]:
        about = {"reason": "unknown_topic", "messages": messages}
        rows = [
            {"topic": name, **about, "first": time, "last": time}
            for name, time in ((longer, times[1]), ("t" * 301, times[0]))
        ]
        return {"discards": rows, "senders": [], "samples": []}

    reports = DiscardReports(lambda: 1_700_000_000.0)
    reports.take(listing(1))
    report = reports.take(listing(3))["unfinished_report"]
    assert (report["bad_topic_msg_count"], report["recent_bad_topic"]) == (4, [cut])
    assert report["discard_topic"] == [
        {"topic": cut, "min_timestamp": 1_700_000_010_000, "max_timestamp": 1_700_000_011_000, "count": 4}
    ]


def test_reports() -> None:
    """Discards within a period are in its report, and not in the next one."""
    now = 1_700_000_000.0
    reports = DiscardReports(lambda: now)

    def listing(malformed: int, unknown: int) -> dict[str, list[dict[str, object]]]:
        time = "2023-11-14T22:13:30.000000001Z"
        evil = base64.b64encode(b"\xff").decode()
        return {
            "discards": [
                {"topic": None, "reason": "short", "messages": malformed, "first": time, "last": time},
                {
                    "topic_base64": evil,
                    "reason": "unknown_topic",
                    "messages": unknown,
                    "first": time,
                    "last": time,
                },
            ],
            "senders": [
                {"sender": "0", "reason": "unclean", "messages": malformed},
                {"sender": "1000", "reason": "unclean", "messages": malformed},
                {"sender": "unknown", "reason": "unclean", "messages": 3},
            ],
            "samples": [
                *[{"topic": None, "reason": "short", "time": time, "data": "abc"}] * 2,
                {"topic": None, "reason": "unclean", "time": time, "data": "ab"},
            ],
        }

    reports.take(listing(5, 1))
    report = reports.take(listing(7, 4))["unfinished_report"]
    assert (report["id"], report["malformed_msg_count"], report["bad_topic_msg_count"]) == (0, 2, 3)
    assert report["recent_malformed"] == [base64.b64encode(b"abc").decode()]
    assert report["recent_bad_topic"] == ["\\xff"]
    assert (report["unix_stream_unclean_disconnect_count"], report["tcp_unclean_disconnect_count"]) == (4, 0)
    assert report["unix_stream_unclean_disconnect"] == [base64.b64encode(b"ab").decode()]
    assert report["tcp_unclean_disconnect"] == []
    assert report["discard_topic"] == [
        {"topic": "\\xff", "min_timestamp": 1_700_000_010_000, "max_timestamp": 1_700_000_010_000, "count": 3}
    ]
    now += REPORT_S
    found = reports.take(listing(8, 4))
    assert (found["finished_report"]["id"], found["finished_report"]["malformed_msg_count"]) == (0, 3)
    assert (found["unfinished_report"]["id"], found["unfinished_report"]["malformed_msg_count"]) == (1, 0)


def test_metadata(served: Served) -> None:
    """When metadata came and changed, in ms; a POST fetches it, and unchanged metadata keeps its time."""
    before = served.get("/metadata_fetch_time/json").json()
    assert list(before) == [*HEAD, "last_updated", "last_modified"]
    assert 0 < before["last_modified"] <= before["last_updated"] <= before["now"]
    times = [before["last_updated"]]

    def answers() -> int:
        found = served.get("/counters/json").json()["counters"]
        return next(one["value"] for one in found if one["name"] == "GetMetadataSuccess")

    first = answers()

    def fetched() -> bool:
        return served.get("/metadata_fetch_time/json").json()["last_updated"] > times[-1]

    for path in ("/metadata_update", "/sys/metadata_update", "/metadata_update"):
        asked = served.ask(path, b"")
        assert (asked.status, asked.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
        served.bruce.await_true(fetched)
        after = served.get("/metadata_fetch_time/json").json()
        assert after["last_modified"] == before["last_modified"]
        times.append(after["last_updated"])
    served.bruce.await_true(lambda: answers() >= first + 3)
    # Three periodic requests of the worker would take 20 s from the first to the last.
    assert times[-1] - times[1] < 19_000
    assert served.get("/metadata_update").status == 405


def test_what_a_browser_may_not(served: Served) -> None:
    """A page of another site can start nothing here, neither by a form nor by an image."""
    assert served.ask("/metadata_update", b"", {"Origin": "http://evil.example"}).status == 403
    found = served.get("/msg_debug/add_all_topics")
    assert found.status == 404
    assert "brucectl trace" in found.json()["error"]


def test_a_name_that_would_break_json(served: Served) -> None:
    """A topic with quotes is encoded as a JSON string."""
    row = next(row for row in served.get("/api/v1/discards").json()["discards"] if row["topic"])
    assert row["topic"] == EVIL.decode()
