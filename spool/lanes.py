"""The lanes of a spool: under which names jobs deliver its messages in transactions.

    delivery/lanes   written by a job's driver that has delivery on lease, each time whole
        lanes := magic:"brucelan" version:u32=1 names:u32 epoch:u64 check:u64

Little-endian; `check` is the xxh3 of what stands before it. Messages for partitions of number n go in lane n,
which Kafka knows by a name made of the spool's uuid and n (dispatch.names); n is below `names`. The file is
there before a task may begin its first transaction. So whoever delivers next knows each name under which
Kafka may hold what no outcome file has, or may yet get it. He closes these lanes (dispatch.closing), writes
down what they delivered, and removes the file. `epoch` tells the tasks of this job, or of this batch of a
run, from those before it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from spool.digest import digest
from spool.disk import make_directory, read_bytes, sync_directory, write_file
from spool.layout import Layout

_MAGIC, _VERSION = b"brucelan", 1
_LANES = struct.Struct("<8sIIQ")
_CHECK_BYTES = 8


class Lanes(NamedTuple):
    """Those that nobody has closed."""

    names: int
    """0 when that is not known: then those that have left a record."""
    epoch: int


_UNKNOWN = Lanes(0, 0)


def read_lanes(layout: Layout) -> Lanes | None:
    """The lanes that jobs have used; None when all are closed."""
    try:
        data = read_bytes(layout.lanes, _LANES.size + _CHECK_BYTES)
    except FileNotFoundError:
        return None
    except OSError:
        return _UNKNOWN
    head, check = data[: _LANES.size], data[_LANES.size :]
    if len(head) < _LANES.size or check != digest(head).to_bytes(_CHECK_BYTES, "little"):
        return _UNKNOWN
    magic, version, names, epoch = _LANES.unpack(head)
    return Lanes(names, epoch) if (magic, version) == (_MAGIC, _VERSION) else _UNKNOWN


def write_lanes(layout: Layout, lanes: Lanes) -> None:
    """Say which lanes are used from now on; durable. Raises OSError."""
    make_directory(layout.delivery)
    row = _LANES.pack(_MAGIC, _VERSION, *lanes)
    write_file(layout.lanes, row + digest(row).to_bytes(_CHECK_BYTES, "little"))


def remove_lanes(layout: Layout) -> None:
    """All are closed, and the marks have what they delivered. Raises OSError."""
    layout.lanes.unlink(missing_ok=True)
    sync_directory(layout.delivery)
