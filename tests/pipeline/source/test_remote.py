"""Spools at addresses: the same messages, and no more of the files than is needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from pyarrow import fs
from pyspark.sql import datasource as f

from pipeline.errors import BadOption
from pipeline.source.plan import plan_spools
from pipeline.source.pushdown import choose
from pipeline.source.remote import Remote, mirror, shown
from pipeline.source.segments import SegmentReading
from spool.errors import NoSpool
from tests.pipeline.object_store import object_store
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import pack_file, shorten

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE = 1 << 20


@pytest.fixture
def fleet(tmp_path: Path) -> dict[str, SpoolFixture]:
    """Spools of two hosts in a bucket, one of them packed in part; beside them a folder that is none."""
    spools = {}
    for host in ("web 1", "web2"):
        place = tmp_path / "bucket" / "fleet" / host
        place.mkdir(parents=True)
        spools[host] = SpoolFixture(place)
        spools[host].fill(60)
        spools[host].step()
    for pair in spools["web2"].layout.list_segments()[:2]:
        pack_file(spools["web2"].layout.segment(*pair))
    spools["web 1"].crash()
    spools["web2"].crash()
    (tmp_path / "bucket/fleet/other").mkdir()
    (tmp_path / "bucket/fleet/other/file").write_text("x")
    return spools


def read(address: str) -> dict[str, list[int]]:
    """Sequence numbers by spool, as executors find them."""
    found: dict[str, list[int]] = {}
    for plan in plan_spools([address]):
        for part in choose(plan):
            for piece in SegmentReading(part).pieces():
                found.setdefault(part.spool, []).extend(piece.batch.sequence.tolist())
    return found


def test_a_fleet_in_an_object_store(fleet: dict[str, SpoolFixture], tmp_path: Path) -> None:
    """Globs and plain addresses give the messages of the spools there, packed segments too."""
    every = {spool.identity.spool.hex(): list(range(180)) for spool in fleet.values()}
    with object_store(tmp_path) as (query, _):
        assert read(f"s3://me:secret@bucket/fleet/*/spool?{query}") == every
        one = fleet["web 1"].identity.spool.hex()
        assert read(f"s3://me:secret@bucket/fleet/web%201/spool?{query}") == {one: every[one]}
        assert read(f"s3://me:secret@bucket/fl*t/web[0-9]/spool?{query}").keys() == every.keys() - {one}
        with pytest.raises(NoSpool, match=r"^s3://bucket/fleet/\* holds no spool$"):
            read(f"s3://me:secret@bucket/fleet/*?{query}")
    with pytest.raises(BadOption, match="nowhere://x is no address that pyarrow knows"):
        read("nowhere://x?password=secret")
    refusal = {"FileSystem.from_uri.side_effect": OSError("Unable to load libhdfs")}
    with (
        mock.patch("pipeline.source.remote.fs", **refusal),
        pytest.raises(NoSpool, match="hdfs://x/y cannot be reached: Unable to load libhdfs"),
    ):
        read("hdfs://x/y")


def test_a_footer_that_is_not_the_segments_own(tmp_path: Path) -> None:
    """The whole segment is brought, and read to its end."""
    place = tmp_path / "bucket/host"
    place.mkdir(parents=True)
    spool = SpoolFixture(place)
    spool.fill(60)
    spool.stop()
    last = spool.layout.segment(*spool.layout.list_segments()[-1])
    shorten(last, spool.segments()[-1].frames[1].offset)
    with object_store(tmp_path) as (query, _):
        assert read(f"s3://me:secret@bucket/host/spool?{query}") == {
            spool.identity.spool.hex(): list(range(180))
        }


def test_the_host_of_a_collected_spool(fleet: dict[str, SpoolFixture], tmp_path: Path) -> None:
    """It is the host in the copied `identity`, not that of the reader; without that file it is unknown."""
    for name, spool in fleet.items():
        uuid, _, _ = spool.layout.identity.read_text().partition("\n")
        spool.layout.identity.write_text(f"{uuid}\nhost {name}\nin use\n")
    with object_store(tmp_path) as (query, _):
        for expected in (list(fleet), [None, None]):
            plans = plan_spools([f"s3://me:secret@bucket/fleet/*/spool?{query}"])
            assert [part.host for plan in plans for part in plan.parts[:1]] == expected
            for spool in fleet.values():
                spool.layout.identity.unlink(missing_ok=True)


def test_a_local_address_is_a_path(spool: SpoolFixture) -> None:
    """`file:` addresses are read like paths, up to the watermark of the index."""
    spool.fill(3)
    spool.step()
    spool.fill(1)
    spool.crash()
    assert read(f"file://{spool.layout.directory}") == {spool.identity.spool.hex(): list(range(9))}


def test_only_what_is_needed_is_brought(tmp_path: Path) -> None:
    """A plan asks for the ends of sealed segments, and a part for its own frames."""
    place = tmp_path / "bucket" / "host"
    place.mkdir(parents=True)
    spool = SpoolFixture(place, segment_bytes=LARGE, max_bytes=16 * LARGE)
    spool.fill(2400, messages=1, value=b"v" * 1000)
    spool.stop()
    sizes = {path.name: path.stat().st_size for path in spool.layout.segments.iterdir()}
    with object_store(tmp_path) as (query, requests):
        (plan,) = plan_spools([f"s3://me:secret@bucket/host/spool?{query}"])
        ends = len(sizes) * (2 << 16) + spool.layout.identity.stat().st_size
        assert brought(requests) <= ends
        requests.clear()
        (part,) = choose(plan, [f.EqualTo(("sequence",), 1500)])
        assert 1500 in [n for p in SegmentReading(part).pieces() for n in p.batch.sequence.tolist()]
        assert {Path(name).name for name, _ in requests} == {f"{part.first_sequence:020d}.seg"}
        assert brought(requests) < 3 << 16


def brought(requests: list[tuple[str, str]]) -> int:
    """Bytes that were asked for."""
    ranges = [wanted.removeprefix("bytes=").split("-") for _, wanted in requests if wanted != "head"]
    return sum(int(last) - int(first) + 1 for first, last in ranges)


def test_any_filesystem_of_pyarrow(spool: SpoolFixture, tmp_path: Path) -> None:
    """A spool mirrored in another filesystem is planned as the spool itself."""
    spool.fill(60)
    spool.stop()
    files = fs._MockFileSystem()
    files.create_dir("a/segments", recursive=True)
    for path in spool.layout.segments.iterdir():
        with files.open_output_stream(f"a/segments/{path.name}") as copy:
            copy.write(path.read_bytes())
    mirror(Remote("mock://a", files, "a"), tmp_path / "copy")
    sub = fs.SubTreeFileSystem(str(spool.layout.directory.parent), fs.LocalFileSystem())
    mirror(Remote("sub://", sub, "spool"), tmp_path / "other")
    (local,) = plan_spools([str(spool.layout.directory)])
    for name in ("copy", "other"):
        (plan,) = plan_spools([str(tmp_path / name)])
        assert (plan.stored, plan.runs, plan.topics()) == (local.stored, local.runs, local.topics())


def test_passwords_are_not_shown() -> None:
    """An address in a message has neither password nor query."""
    assert shown("s3://me:secret@bucket/a?secret=x") == "s3://bucket/a"
    assert shown("/a?b@c") == "/a?b@c"


@pytest.mark.oldest_spark
@pytest.mark.spark
def test_spark_reads_an_address(spark: SparkSession, fleet: dict[str, SpoolFixture], tmp_path: Path) -> None:
    """`load` takes an address, and executors find the segments there; the marks are not known."""
    with object_store(tmp_path) as (query, _):
        frame = spark.read.format("bruce").load(f"s3://me:secret@bucket/fleet/*/spool?{query}")
        rows = frame.groupBy("spool", "delivered").count().collect()
    assert {(row.spool, row.delivered, row["count"]) for row in rows} == {
        (spool.identity.spool.hex(), None, 180) for spool in fleet.values()
    }


@pytest.mark.spark
def test_an_archive_of_addresses(spark: SparkSession, fleet: dict[str, SpoolFixture], tmp_path: Path) -> None:
    """`archive` takes addresses, too, and knows the next time what it has of them."""
    from pipeline.archive.job import run_archive
    from pipeline.archive.spark import SparkFiles
    from pipeline.spark_engine import SparkEngine

    with object_store(tmp_path) as (query, _):
        paths = [f"s3://me:secret@bucket/fleet/*/spool?{query}"]
        engine, files = SparkEngine(spark), SparkFiles(spark, str(tmp_path / "archive"))
        assert run_archive(engine, files, paths).messages == 360
        again = run_archive(engine, files, paths)
    assert (again.messages, again.sound) == (0, True)
