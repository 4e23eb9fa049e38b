"""The paths and fields of Dory's status server, for the monitoring scripts that read them.

    /server_info /counters /queues /discards /metadata_fetch_time, each with /json or /plain behind it
    POST /metadata_update, or /sys/metadata_update: ask Kafka for its metadata now

A counter is here under Dory's name where it means the same. Others that Dory's check_dory_counters.py looks
for are 0, since it ends at the first that is missing; and it wants the same names each time. Discards count
over the spool's life, not since the start: a difference between two polls is right over a restart, too.
Messages that were accepted (...ForwardMsg), and connections, count since the daemon was started in order. In
/queues all waiting messages of a topic count as `send_wait`, since they wait in the spool and not in a batch,
and messages that were sent and not answered are known by broker only; `new` are messages that are not synced
yet. A discard report counts from the report before it; the first begins with this process. Messages that the
end of a connection cut short are told apart by their sender, since a TCP connection has no uid; their samples
are not, and are in the list of each input that has any.

docs/monitoring/dory.md lists the served paths and fields, and those without a counterpart here. /msg_debug/
has none: any page in a browser of this host could send a GET that starts something, so `brucectl trace` does
the same. An unknown path is 404.
"""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from status.figures import Figures
from status.report import Snapshot, shown_name

REPORT_S = 600.0
"""How long a discard report runs."""
_MOST_RECENT = 25
_MALFORMED = ("short", "size", "flags", "topic", "timestamp", "key", "value", "truncated", "poison")
_REPORTED_MALFORMED = (*_MALFORMED, "bad_size", "too_long", "tls", "http")
"""A discard report counts the ends of connections as malformed messages; the counter does not."""
_COUNTERS: dict[str, tuple[str, ...]] = {
    "InputAgentDiscardMsgMalformed": _MALFORMED,
    "InputAgentDiscardMsgUnsupportedApiKey": ("api_key",),
    "InputAgentDiscardMsgNoMem": ("spool_full", "over_quota"),
    "DiscardBadTopicMsgOnRoute": ("unknown_topic",),
    "DiscardLongMsg": ("too_large",),
    "DiscardDueToRateLimit": ("rate_limited",),
}
"""Which reasons a counter of Dory's takes together."""
_STREAMS = {"stream": ("Unix", "UnixStreamInput"), "tcp": ("Tcp", "TcpInput")}
"""The names of an input in counters."""
_ENDS: dict[str, tuple[str, ...]] = {
    "CleanDisconnect": ("clean",),
    "UncleanDisconnect": ("unclean",),
    "InvalidSizeField": ("bad_size",),
    # The first bytes of TLS and HTTP, read as a size.
    "MsgBodyTooLarge": ("too_long", "tls", "http"),
}
_BY_TCP = "unknown"
"""As a sender."""
_AT_INTAKE = {
    *_MALFORMED,
    *("api_key", "api_version", "spool_full", "over_quota", "not_permitted"),
    *("bad_size", "too_long", "unclean", "tls", "http", "user_limit", "too_slow"),
}

_WITHOUT_MEANING = """
    MsgUnprocessedDestroy NoDiscardQuery StreamClientWorkerStdException StreamClientWorkerUnknownException
    BugAllTopicsEmpty BugDispatchBatchOutOfRangeIndex BugDispatchMsgOutOfRangeIndex
    BugGetAckWaitQueueOutOfRangeIndex BugMsgListMultipleTopics BugMsgSetEmpty BugMultiPartitionGroupEmpty
    BugProduceRequestEmpty
    BadKafkaResponseSize BadMetadataResponse BadMetadataResponseSize BadProduceResponse BadProduceResponseSize
    ConnectFailOnTryGetMetadata ConnectorConnectFail ConnectorSocketBrokerClose ConnectorSocketError
    ConnectorSocketTimeout ConnectorTruncateLongTimeout CorrelationIdMismatch MsgSetCompressionError
    MetadataHasEmptyBrokerList MetadataHasEmptyTopicList MetadataSanityCheckFail
    MetadataResponseBadBrokerHostLen MetadataResponseBadBrokerPort MetadataResponseBadTopicNameLen
    MetadataResponseInvalidLeaderNodeId MetadataResponseNegativeBrokerCount
    MetadataResponseNegativeBrokerNodeId MetadataResponseNegativeCaughtUpReplicaNodeId
    MetadataResponseNegativePartitionCaughtUpReplicaCount MetadataResponseNegativePartitionCount
    MetadataResponseNegativePartitionId MetadataResponseNegativePartitionReplicaCount
    MetadataResponseNegativeReplicaNodeId MetadataResponseNegativeTopicCount
    MetadataResponseReadLostTcpConnection MetadataResponseReadTimeout
    ProduceResponseBadPartitionCount ProduceResponseBadTopicCount ProduceResponseBadTopicNameLength
    ProduceResponseShortPartitionList ProduceResponseShortTopicList ProduceResponseUnexpectedPartition
    ProduceResponseUnexpectedTopic SendMetadataRequestFail SendMetadataRequestLostTcpConnection
    ShortMetadataResponse TopicHasNoAvailablePartitions
    MongooseStdException MongooseUnknownException MongooseUrlDecodeError
"""
"""Counters that Dory's script looks for, of parts that bruce does not have."""

Document = dict[str, Any]


def server_info(pid: int, version: str, started_s: int) -> Document:
    """The process that answers."""
    return {"pid": pid, "version": version, "since": started_s, "now": int(time.time())}


def counters(figures: Figures) -> list[Document]:
    """Those that mean the same, and those of `_WITHOUT_MEANING`; always the same names, each once."""
    snapshot, counted = figures.report.snapshot, figures.counted
    discarded, created = snapshot.discarded, snapshot.watermarks.accepted
    values = {"MsgCreate": created, "MsgDestroy": created - snapshot.backlog}
    values["GetMetadataSuccess"] = counted.metadata_answers if counted else 0
    values["GetMetadataFail"] = counted.metadata_failures if counted else 0
    values |= dict(_of_inputs(snapshot))
    values |= {name: sum(discarded.get(reason, 0) for reason in of) for name, of in _COUNTERS.items()}
    values |= dict.fromkeys(_WITHOUT_MEANING.split(), 0)
    return [{"location": "[bruce, 0]", "name": name, "value": value} for name, value in values.items()]


def _of_inputs(snapshot: Snapshot) -> Iterator[tuple[str, int]]:
    inputs = {one.input: one for one in snapshot.inputs}
    yield "UnixDgInputAgentForwardMsg", inputs["datagram"].stored if inputs else 0
    for name, (client, prefix) in _STREAMS.items():
        one = inputs.get(name)
        found = one.connections if one else None
        closed = found.closed if found else {}
        yield f"New{client}Client", found.accepted if found else 0
        yield f"{prefix}ForwardMsg", one.stored if one else 0
        yield from ((prefix + end, sum(closed.get(how, 0) for how in ways)) for end, ways in _ENDS.items())
        yield f"{prefix}SocketError", found.errors if found else 0


def queues(figures: Figures) -> Document:
    """Waiting messages, by topic."""
    marks, waiting = figures.report.snapshot.watermarks, Counter[str]()
    for topic, count in figures.report.topics:
        waiting[shown_name(topic)] += count
    return {
        "sending": [
            {"topic": topic, "batch": 0, "send_wait": count, "ack_wait": 0}
            for topic, count in waiting.items()
        ],
        "new": marks.accepted - marks.synced,
    }


def metadata_fetch_time(figures: Figures) -> Document:
    """When Kafka's metadata came last, and changed last: ms, as `now` here; 0 for never."""
    counted = figures.counted
    fetched, changed = (counted.metadata_ns, counted.metadata_changed_ns) if counted else (0, 0)
    return {
        "now": time.time_ns() // 1_000_000,
        "last_updated": fetched // 1_000_000,
        "last_modified": changed // 1_000_000,
    }


class DiscardReports:
    """Reports of discarded messages, a period each: the one that runs, and the one before."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._number, self._began = 0, clock()
        self._base: dict[tuple[str, str, str], int] | None = None
        self._finished: Document | None = None

    def take(self, listing: Mapping[str, Any]) -> Document:
        """The answer of /discards, made of the document of `brucectl discards --json` as of now."""
        now, counts = self._clock(), _counted(listing)
        if self._base is None:
            self._base, self._began = counts, now
        if now - self._began >= REPORT_S:
            self._finished = self._report(listing, counts)
            self._number, self._began, self._base = self._number + 1, now, counts
        found = {"interval": int(REPORT_S), "unfinished_report": self._report(listing, counts)}
        return found | ({"finished_report": self._finished} if self._finished else {})

    def _report(self, listing: Mapping[str, Any], counts: Mapping[tuple[str, str, str], int]) -> Document:
        assert self._base is not None
        fresh = {key: count - self._base.get(key, 0) for key, count in counts.items()}
        by_reason: dict[str, int] = {}
        unclean = {True: 0, False: 0}
        for (reason, _, sender), count in fresh.items():
            if not sender:
                by_reason[reason] = by_reason.get(reason, 0) + count
            elif reason == "unclean":
                unclean[sender == _BY_TCP] += count
        cut_short = _recent(listing, self._began, ("unclean",))
        later = [row for row in _by_name(listing) if row["reason"] not in _AT_INTAKE and fresh[_key(row)] > 0]
        return {
            "id": self._number,
            "start_time": int(self._began),
            "malformed_msg_count": sum(by_reason.get(reason, 0) for reason in _REPORTED_MALFORMED),
            "unix_stream_unclean_disconnect_count": unclean[False],
            "tcp_unclean_disconnect_count": unclean[True],
            "unsupported_api_key_msg_count": by_reason.get("api_key", 0),
            "unsupported_version_msg_count": by_reason.get("api_version", 0),
            "bad_topic_msg_count": by_reason.get("unknown_topic", 0),
            "recent_malformed": _recent(listing, self._began, _REPORTED_MALFORMED),
            "unix_stream_unclean_disconnect": cut_short if unclean[False] else [],
            "tcp_unclean_disconnect": cut_short if unclean[True] else [],
            "unsupported_msg_version": [],
            "recent_bad_topic": [_name(row) for row in later if row["reason"] == "unknown_topic"],
            "recent_too_long_msg": _recent(listing, self._began, ("too_large",)),
            "rate_limit_discard": [
                {"topic": _name(row), "count": fresh[_key(row)]}
                for row in later
                if row["reason"] == "rate_limited"
            ],
            "discard_topic": [
                {
                    "topic": _name(row),
                    "min_timestamp": _ms(row["first"]),
                    "max_timestamp": _ms(row["last"]),
                    "count": fresh[_key(row)],
                }
                for row in later
            ],
            "possible_duplicate_topic": [],
        }


def as_plain(document: Mapping[str, Any]) -> str:
    """A line for each field, as `name: value`; counters as `name=value`."""
    lines = [
        f"{name}: {value if isinstance(value, str | int) else json.dumps(value)}"
        for name, value in document.items()
        if name != "counters"
    ]
    lines += [f"{one['location']}.{one['name']}={one['value']}" for one in document.get("counters", [])]
    return "\n".join(lines) + "\n"


def _key(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """(reason, topic, "")."""
    return row["reason"], _name(row), ""


def _name(row: Mapping[str, Any]) -> str:
    """A topic as it is shown; "" where there is none."""
    if "topic_base64" in row:
        return shown_name(base64.b64decode(row["topic_base64"]))
    return shown_name((row["topic"] or "").encode())


def _by_name(listing: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The discards, those whose topics are shown alike in one row with the first and the last time of all."""
    found: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for row in listing["discards"]:
        before = found.setdefault(_key(row), row)
        first = min(filter(None, (before["first"], row["first"])), default=None)
        last = max(filter(None, (before["last"], row["last"])), default=None)
        found[_key(row)] = {**before, "first": first, "last": last}
    return list(found.values())


def _counted(listing: Mapping[str, Any]) -> Counter[tuple[str, str, str]]:
    """Messages by reason and topic, and once more by reason and sender."""
    found: Counter[tuple[str, str, str]] = Counter()
    for row in listing["discards"]:
        found[_key(row)] += row["messages"]
    for row in listing["senders"]:
        found[row["reason"], "", row["sender"]] += row["messages"]
    return found


def _recent(listing: Mapping[str, Any], since_s: float, reasons: tuple[str, ...]) -> list[str]:
    """First bytes of the newest, each once, in base64."""
    found = [
        one.get("data_base64") or base64.b64encode(one["data"].encode()).decode()
        for one in listing["samples"]
        if one["reason"] in reasons and one["time"] and _ms(one["time"]) >= 1000 * since_s
    ]
    return list(dict.fromkeys(found))[-_MOST_RECENT:]


def _ms(utc: str | None) -> int:
    """Of ISO 8601 to the ns, whose last three digits Python has no place for; 0: not known."""
    if utc is None:
        return 0
    return round(1000 * datetime.fromisoformat(utc.rstrip("Z")[:26] + "+00:00").timestamp())
