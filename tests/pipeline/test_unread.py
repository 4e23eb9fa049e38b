"""Segments that the disk gives an error for (EIO): only a query that asks for the column passes them by.

In this process the errors are those of tests.spool.unreadable; for a job they are the kernel's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dispatch.embedded import EmbeddedKafka
from spool.errors import ReadFailed
from spool.format.packed import pack
from spool.format.wire import encode
from tests.daemon import consume
from tests.forgetful.disk import ForgetfulDisk
from tests.spark import Done
from tests.spool import plain
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import mark_often
from tests.spool.unreadable import FOR_EVER, unreadable

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

pytest.importorskip("pyspark")

PARTS = {
    "header": (0, 64),
    "body": (2048, 4096),
    "from the body on": (2048, FOR_EVER),
    "footer": (-1, FOR_EVER),
}
"""Bytes of a segment that cannot be read; -1: from where its footer begins."""
COUNT = 400


@pytest.fixture
def full(spool: SpoolFixture) -> SpoolFixture:
    """Some sealed segments, with a mark of their footers each KiB."""
    fill(spool)
    mark_often(spool)
    return spool


def fill(spool: SpoolFixture) -> None:
    """COUNT messages, ten a frame, one with each partition key."""
    for first in range(0, COUNT, 10):
        spool.append(
            [encode(b"t", b"%d" % i + bytes(50), partition_key=i % 5) for i in range(first, first + 10)]
        )
    for _ in range(8):
        spool.step()
    assert len(spool.layout.list_segments()) >= 4


def second(spool: SpoolFixture) -> tuple[Path, int, int]:
    """(path, first sequence, that of the next) of the second segment."""
    named = spool.layout.list_segments()
    return spool.layout.segment(*named[1]), named[1][0], named[2][0]


def lost(path: Path, part: str) -> tuple[int, int]:
    """The bytes of PARTS."""
    start, end = PARTS[part]
    return start if start >= 0 else plain.read_segment(path.read_bytes()).end, end


def columns(*more: str) -> StructType:
    """The columns that tests look at, and more."""
    from pyspark.sql.types import StructType

    from pipeline.source.schema import SCHEMA, UNREAD

    known = StructType([*SCHEMA.fields, UNREAD])
    return StructType([known[name] for name in ("spool", "sequence", "frame_offset", "damaged", *more)])


def read(spool: SpoolFixture, schema: StructType, **options: str) -> list[dict[str, Any]]:
    """The rows of the spool, as a driver and executors read them."""
    from pipeline.source.source import BruceSource

    reader = BruceSource({"path": str(spool.options.directory), **options}).reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return rows


@pytest.mark.sample(one_of=2)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mode", ["permissive", "dropmalformed"])
def test_who_names_the_column_is_told(full: SpoolFixture, part: str, mode: str) -> None:
    """All that can be read is read, also behind the gap; the rest is rows with the file, and no damage."""
    path, first, behind = second(full)
    with unreadable(path, *lost(path, part)):
        rows = read(full, columns("unread"), mode=mode)
    there = [row["sequence"] for row in rows if row["sequence"] is not None]
    lacking = sorted(set(range(COUNT)) - set(there))
    assert there == sorted(set(there))
    assert set(lacking) <= set(range(first, behind))
    assert {"header": len(lacking) == behind - first, "footer": not lacking}.get(part, len(lacking) > 0)
    if part == "body":
        assert behind - 1 in there
    told = [row for row in rows if row["sequence"] is None]
    assert {row["unread"] for row in told} == {f"{path}: Input/output error"}
    assert not any(row["damaged"] for row in rows)
    assert read(full, columns("unread"), mode=mode) == read(full, columns("unread"))


def test_a_packed_segment_goes_as_a_whole(full: SpoolFixture) -> None:
    """Its blocks are unpacked together: one that is not given takes the others along."""
    path, first, behind = second(full)
    with path.open("rb") as source, path.with_suffix(".tmp").open("w+b") as target:
        pack(source.fileno(), target.fileno())
    path.with_suffix(".tmp").rename(path)
    with unreadable(path, 300, 400):
        rows = read(full, columns("unread"))
    lacking = set(range(COUNT)) - {row["sequence"] for row in rows}
    assert lacking == set(range(first, behind))
    assert [row["unread"] for row in rows if row["sequence"] is None] == [f"{path}: Input/output error"]


@pytest.mark.sample(one_of=2)
@pytest.mark.parametrize("part", PARTS)
def test_else_the_query_ends(full: SpoolFixture, part: str) -> None:
    """A query that does not name the column, or wants failfast, fails instead of returning only a part."""
    from pipeline.errors import JobFailed

    path, _, _ = second(full)
    with unreadable(path, *lost(path, part)):
        for schema, mode in (
            (columns(), "permissive"),
            (columns(), "dropmalformed"),
            (columns("unread"), "failfast"),
        ):
            with pytest.raises((JobFailed, ReadFailed), match=path.name):
                read(full, schema, mode=mode)


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker, one partition."""
    with EmbeddedKafka(brokers=1, topics=[("t", 1)]) as running:
        yield running


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[ForgetfulDisk]:
    """An empty one."""
    with ForgetfulDisk(tmp_path / "disk") as made:
        yield made


@pytest.mark.sample("header")
@pytest.mark.spark
@pytest.mark.parametrize("part", ["header", "from the body on"])
def test_a_drain_passes_it_by(
    job: Callable[..., Done], kafka: EmbeddedKafka, disk: ForgetfulDisk, tmp_path: Path, part: str
) -> None:
    """The rest is delivered, exit code 1, and the file named; when it heals, another drain has the rest."""
    spool = SpoolFixture(disk.path, tmp_path)
    fill(spool)
    path, first, behind = second(spool)
    spool.crash()
    arguments = "drain", spool.options.directory, "--bootstrap-servers", kafka.bootstrap_servers, "--json"
    disk.lose(path.name, *PARTS[part])
    done = job(*arguments)
    told = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert f"{path}: Input/output error: what could not be read of it was left as it is" in done.stderr
    assert "Traceback" not in done.stderr
    assert told["unread"] == [f"{path}: Input/output error"]
    assert 0 < told["left"] <= behind - first
    assert told["messages"] == COUNT == told["delivered"] + told["left"]
    disk.heal()
    again = job(*arguments)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["delivered"] == told["left"]
    records = consume(kafka.bootstrap_servers, "t", 1, COUNT)
    values = sorted(int(record.value().split(b"\0")[0]) for record in records)
    assert values == list(range(COUNT))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("part", ["header", "from the body on"])
def test_a_replay_and_an_audit_pass_it_by(
    job: Callable[..., Done], kafka: EmbeddedKafka, disk: ForgetfulDisk, tmp_path: Path, part: str
) -> None:
    """The rest is sent, and found; exit code 1, and the file named, also in an audit of one topic."""
    spool = SpoolFixture(disk.path, tmp_path)
    fill(spool)
    path, first, behind = second(spool)
    spool.crash()
    named = [f"{path}: Input/output error"]
    where = spool.options.directory, "--bootstrap-servers", kafka.bootstrap_servers, "--json"
    disk.lose(path.name, *PARTS[part])
    done = job("replay", *where, "--from", "0", "--yes")
    sent = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert f"{named[0]}: what could not be read" in done.stderr
    assert (sent["unread"], sent["left"], sent["gone"]) == (named, 0, 0)
    assert COUNT > sent["sent"] == sent["messages"] >= COUNT - (behind - first)
    lacking = COUNT - sent["sent"]
    for more in ((), ("--topic", "t"), ("--unstamped",)):
        done = job("audit", *where, *more)
        told = json.loads(done.stdout)
        assert done.returncode == 1, done.stderr
        assert (told["unread"], told["sound"]) == (named, False)
        assert (told["total"]["once"], told["total"]["lost"]) == (sent["sent"], 0)
        assert told["spools"][0]["unreadable"] == (None if more[:1] == ("--topic",) else lacking)
    disk.heal()
    done = job("replay", *where, "--from", "0", "--yes")
    again = json.loads(done.stdout)
    assert (done.returncode, again["sent"], again["unread"]) == (0, COUNT, []), done.stderr
    told = json.loads(job("audit", *where).stdout)
    assert (told["unread"], told["total"]["once"], told["total"]["duplicated"]) == ([], lacking, sent["sent"])
