"""Topics of the Kafka input: which ones its clients want, and how many partitions Kafka said that they have.

The Kafka worker knows no broker. It writes the names that its clients ask for into a file beside the shared
state, and counts in Field.TOPICS_WANTED; the deliverer asks Kafka for them with its own topics, and notes the
answers in a file of the spool, which outlives an outage and a restart:

    SHARED.topics    := ["TOPIC", ...]                        JSON
    delivery/topics  := {"TOPIC": PARTITIONS or -ERROR, ...}  JSON

ERROR is Kafka's code, such as 3 for a topic that it does not have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from spool.errors import NotOurs
from spool.layout import Layout
from spool.storage.disk import read_bytes, write_at, write_file
from spool.storage.ownership import put_own, read_believed

MOST_WANTED = 10_000
"""Topics that clients may want, and that are noted. Of more than that, those wanted longest ago are
forgotten, and those are not noted that Kafka does not have."""
_MOST_BYTES = 4 << 20
"""Most bytes of a file that are read: so many topics with the longest names."""
_MOST_PARTITIONS = 1 << 20


def wanted_path(shared: Path) -> Path:
    """The file of the wanted topics, beside the shared state."""
    return shared.with_name(f"{shared.name}.topics")


def write_wanted(shared: Path, topics: Collection[str]) -> None:
    """Say which topics the clients want. Raises NotOurs, OSError."""
    data = json.dumps(list(topics)).encode()
    put_own(wanted_path(shared), lambda fd: write_at(fd, data, 0))


def read_wanted(shared: Path) -> list[bytes]:
    """The wanted topics; none without the file, or from a damaged one."""
    try:
        names = json.loads(read_believed(wanted_path(shared), _MOST_BYTES))
        return [name.encode() for name in names[:MOST_WANTED]] if isinstance(names, list) else []
    except (NotOurs, OSError, ValueError, TypeError, AttributeError, RecursionError):
        return []


def write_partitions(layout: Layout, found: Mapping[bytes, int]) -> None:
    """Note how many partitions topics have, or -ERROR. Raises OSError."""
    write_file(layout.topics, json.dumps({name.decode(): count for name, count in found.items()}).encode())


def read_partitions(layout: Layout) -> dict[bytes, int]:
    """The newest note; empty without such a file, and for a damaged one."""
    try:
        document = json.loads(read_bytes(layout.topics, _MOST_BYTES))
        return {name.encode(): _count(value) for name, value in document.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def version_of(layout: Layout) -> tuple[int, int]:
    """Another one for each note: its file's inode, and when it was written, in ns; zeros without one."""
    try:
        found = os.stat(layout.topics)
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _count(value: object) -> int:
    """A number of partitions, or -ERROR. Raises TypeError for what is none."""
    if isinstance(value, int) and abs(value) <= _MOST_PARTITIONS:
        return value
    raise TypeError(value)
