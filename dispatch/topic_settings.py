"""The settings of topics that decide what becomes of messages that are delivered late.

Kafka's retention counts from the timestamp of a record. With `message.timestamp.type=CreateTime`, the
default, that is the message's own: what has waited longer than `retention.ms` is deleted soon after it was
delivered. And what is older than `message.timestamp.before.max.ms` is refused.

While Kafka is away it cannot be asked. So the deliverer notes the settings in a file of the spool:

    delivery/lateness := {"TOPIC": [SECONDS or null, SECONDS or null], ...}     JSON

for each topic with a limit: for how long it keeps messages, and how old they may be when it takes them.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_size_t, c_void_p
from typing import TYPE_CHECKING, NamedTuple

from dispatch.timing import SETTINGS_SLACK_S
from spool.layout import Layout
from spool.storage.disk import read_bytes, write_file

if TYPE_CHECKING:
    from dispatch.librdkafka import Library

_RETENTION, _TYPE, _OLDEST, _POLICY = (
    "retention.ms",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "cleanup.policy",
)
_DESCRIBE, _TOPIC = 5, 2
"""RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS, RD_KAFKA_RESOURCE_TOPIC"""
_MOST_S = float(1 << 63)
_MOST_BYTES = 4 << 20
"""Most bytes of the file that are read: ten thousand topics with the longest names."""


class Lateness(NamedTuple):
    """How late messages of a topic may come, by their own timestamps; None: as late as they like."""

    kept_s: float | None
    """Those that are older are deleted."""
    taken_s: float | None
    """Those that are older are refused."""


def lateness_of(settings: Mapping[str, str]) -> Lateness:
    """The lateness by a topic's settings; those that are missing, or no numbers, limit nothing."""
    if settings.get(_TYPE) == "LogAppendTime":
        return Lateness(None, None)
    kept = _seconds(settings.get(_RETENTION)) if "delete" in settings.get(_POLICY, "delete") else None
    return Lateness(kept, _seconds(settings.get(_OLDEST)))


def _seconds(text: str | None) -> float | None:
    """Milliseconds in digits; None for -1, which is no limit, and for Kafka's highest number."""
    if text is None or not text.isdecimal() or int(text) >= (1 << 63) - 1:
        return None
    return int(text) / 1000


def ask_lateness(
    library: Library, handle: int, topics: Sequence[bytes], timeout_s: float
) -> dict[bytes, Lateness]:
    """By topic, how late its messages may come; without those that Kafka does not show to our user.

    Empty when there is no answer within `timeout_s`.
    """
    if not topics:
        return {}
    wanted = (c_void_p * len(topics))(*(library.ConfigResource_new(_TOPIC, name) for name in topics))
    options, queue = library.AdminOptions_new(handle, _DESCRIBE), library.queue_new(handle)
    library.AdminOptions_set_request_timeout(options, int(timeout_s * 1000), None, 0)
    library.DescribeConfigs(handle, wanted, len(topics), options, queue)
    event = library.queue_poll(queue, int((timeout_s + SETTINGS_SLACK_S) * 1000))
    try:
        return dict(_answers(library, event)) if event else {}
    finally:
        if event:
            library.event_destroy(event)
        library.queue_destroy(queue)
        library.AdminOptions_destroy(options)
        library.ConfigResource_destroy_array(wanted, len(topics))


def _answers(library: Library, event: int) -> Iterator[tuple[bytes, Lateness]]:
    count = c_size_t()
    result = library.event_DescribeConfigs_result(event)
    if library.event_error(event) or not result:
        return
    resources = library.DescribeConfigs_result_resources(result, ctypes.byref(count))
    for resource in resources[: count.value]:
        if not library.ConfigResource_error(resource):
            entries = library.ConfigResource_configs(resource, ctypes.byref(count))
            settings = {
                library.ConfigEntry_name(entry): library.ConfigEntry_value(entry) or b""
                for entry in entries[: count.value]
            }
            told = {name.decode(): value.decode(errors="replace") for name, value in settings.items()}
            yield library.ConfigResource_name(resource), lateness_of(told)


def write_lateness(layout: Layout, found: Mapping[bytes, Lateness]) -> None:
    """Note what was learnt last, of topics with a limit. Raises OSError."""
    limited = {name.decode(): lateness for name, lateness in found.items() if any(lateness)}
    write_file(layout.lateness, json.dumps(limited).encode())


def read_lateness(layout: Layout) -> dict[bytes, Lateness]:
    """The limits that were noted last; empty without such a file, and for a damaged one."""
    try:
        document = json.loads(read_bytes(layout.lateness, _MOST_BYTES))
        return {name.encode(): Lateness(*map(_limit, limits)) for name, limits in document.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _limit(value: object) -> float | None:
    """A limit in the file. Raises TypeError for what is none."""
    if value is None or (isinstance(value, int | float) and 0 <= value <= _MOST_S):
        return value
    raise TypeError(value)
