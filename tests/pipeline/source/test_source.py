"""`format("bruce")` gives what was written, and no more than is committed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from spool.format.frame import POSITION
from spool.format.wire import encode
from spool.index.segment_list import SegmentList
from spool.marks.discarded import Changes, Discard
from spool.marks.marks import Marks
from spool.native.digest import CHUNK_BYTES
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import pack_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def load(spark: SparkSession, *paths: object, **options: str) -> DataFrame:
    """The source over these paths."""
    return spark.read.format("bruce").options(**options).load([str(path) for path in paths])


def sequences(frame: DataFrame) -> list[int]:
    """Every sequence number in it, in order."""
    return sorted(row.sequence for row in frame.select("sequence").collect())


@pytest.mark.oldest_spark
def test_live_segment_ends_at_the_watermark(spark: SparkSession, spool: SpoolFixture) -> None:
    """Messages written and not yet committed are not read; after the next commit they are."""
    spool.fill(3)
    spool.step()
    spool.append([encode(b"t", b"later")])
    assert sequences(load(spark, spool.options.directory)) == list(range(9))
    spool.step()
    assert sequences(load(spark, spool.options.directory)) == list(range(10))


@pytest.mark.oldest_spark
def test_globs_and_lists(
    spark: SparkSession, spool: SpoolFixture, second_spool: SpoolFixture, tmp_path: Path
) -> None:
    """A glob or a list of directories gives several spools, one that is named twice only once."""
    spool.fill(2)
    second_spool.fill(1)
    spool.step()
    second_spool.step()
    both = {spool.identity.spool.hex(): 6, second_spool.identity.spool.hex(): 3}
    listed = load(spark, tmp_path / "spool", tmp_path / "second" / "spool", tmp_path / "spool")
    globbed = load(spark, tmp_path / "sec*" / "*", tmp_path / "s[p]ool", host="web")
    for frame in (listed, globbed):
        assert {row.spool: row["count"] for row in frame.groupBy("spool").count().collect()} == both
    assert [row.host for row in globbed.select("host").distinct().collect()] == ["web"]


@pytest.mark.oldest_spark
def test_damaged_frames_are_what_the_mode_says(spark: SparkSession, spool: SpoolFixture) -> None:
    """A flipped bit costs the messages of its frame and no others; what is said of it is the mode's.

    permissive: one row with its place and size, where the schema can tell it from a message; dropmalformed:
    nothing; failfast: an error that names segment and offset.
    """
    spool.fill(1)
    start = int(spool.writer.tail[POSITION])
    spool.fill(1)
    end = int(spool.writer.tail[POSITION])
    spool.fill(1)
    spool.step()
    flip(spool.last_path(), start + 100)
    rows = load(spark, spool.options.directory).orderBy("frame_offset", "sequence").collect()
    assert [row.sequence for row in rows] == [0, 1, 2, None, 6, 7, 8]
    assert [row.damaged for row in rows] == [False] * 3 + [True] + [False] * 3
    told = {name: value for name, value in rows[3].asDict().items() if value is not None}
    place = {"segment": 1, "frame_offset": start, "damaged_bytes": end - start}
    where = {"spool": spool.identity.spool.hex(), "host": socket.gethostname()}
    assert told == {"damaged": True, **where, **place}
    assert sequences(load(spark, spool.options.directory, mode="DROPMALFORMED")) == [0, 1, 2, 6, 7, 8]
    fewer = spark.read.format("bruce").schema("sequence long").load(str(spool.options.directory))
    assert sequences(fewer) == [0, 1, 2, 6, 7, 8]
    sentence = rf"segment 1 of \S+/spool is damaged: {end - start} bytes at offset {start} hold no good frame"
    with pytest.raises(Exception, match=sentence):
        load(spark, spool.options.directory, mode="failfast").collect()
    with pytest.raises(Exception, match="mode = 'strict' is none of permissive, dropmalformed, failfast"):
        load(spark, spool.options.directory, mode="strict").collect()


def test_a_damaged_header_is_what_the_mode_says(spark: SparkSession, spool: SpoolFixture) -> None:
    """permissive: one row of all its bytes; dropmalformed: nothing; failfast: an error that names the file.

    Any segment counts, packed or not, and when there is no other; messages of others are read.
    """
    spool.fill(120)
    spool.step()
    spool.crash()
    names = spool.layout.list_segments()
    bounds = [first for first, _ in names] + [360]
    hurt = (0, 2, len(names) - 1)
    pack_file(spool.layout.segment(*names[2]))
    for at in hurt:
        flip(spool.layout.segment(*names[at]), 200 if at != 2 else 64 + 200)
    left = [n for at in range(len(names)) if at not in hurt for n in range(*bounds[at : at + 2])]
    rows = load(spark, spool.options.directory).where("damaged").orderBy("segment").collect()
    assert [(row.spool, row.segment, row.frame_offset, row.damaged_bytes, row.sequence) for row in rows] == [
        (spool.identity.spool.hex(), at + 1, 0, spool.layout.segment(*names[at]).stat().st_size, None)
        for at in hurt
    ]
    assert sequences(load(spark, spool.options.directory, mode="dropmalformed")) == left
    fewer = spark.read.format("bruce").schema("sequence long").load(str(spool.options.directory))
    assert sequences(fewer) == left
    sentence = r"\S+/spool/segments/\d{20}\.seg has a damaged header, and nothing of it can be read"
    with pytest.raises(Exception, match=sentence):
        load(spark, spool.options.directory, mode="failfast").collect()
    for at, pair in enumerate(names):
        if at not in hurt:
            spool.layout.segment(*pair).unlink()
    rows = load(spark, spool.options.directory).collect()
    assert [(row.spool, row.damaged) for row in rows] == [(spool.identity.spool.hex(), True)] * 3


def flip(path: Path, offset: int) -> None:
    """Flip one bit."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_segments_that_cannot_match_are_not_opened(spark: SparkSession, spool: SpoolFixture) -> None:
    """Filters on topic, sequence and times spare segments: these could not be read without an error."""
    hour = 3600 * 10**9
    for day in range(5):
        message = encode(b"t%d" % day, b"v" * 1500, timestamp=day * 86_400_000)
        for _ in range(4):
            spool.append([message], received_ns=day * 24 * hour)
    spool.step()
    kept = spool.layout.list_segments()
    assert [first for first, _ in kept] == [0, 4, 8, 12, 16]
    for pair in (kept[0], kept[1], kept[3]):
        path = spool.layout.segment(*pair)
        for offset in range(400, path.stat().st_size - 2048, 512):
            flip(path, offset)

    def chosen(condition: str) -> DataFrame:
        return load(spark, spool.options.directory, mode="failfast", pushFilters="true").where(condition)

    for condition in (
        "topic = 't2'",
        "topic in ('t2', 'other')",
        "topic like 't2%' and value is not null",
        "sequence >= 8 and sequence < 12",
        "received_at > '1970-01-02 12:00:00' and received_at < '1970-01-03 12:00:00'",
        "created_at = '1970-01-03 00:00:00'",
        "timestamp_ms > 100000000 and not timestamp_ms >= 259200000",
    ):
        assert sequences(chosen(condition)) == list(range(8, 12)), condition
    for condition in ("topic <> 't2'", "length(topic) = 2", "sequence >= 8", "sequence < 10"):
        with pytest.raises(Exception, match="is damaged"):
            chosen(condition).collect()


@pytest.mark.oldest_spark
def test_filters_give_the_same_rows_pushed_or_not(spark: SparkSession, spool: SpoolFixture) -> None:
    """If PySpark hands on no filters Spark filters itself; `pushFilters` changes no result."""
    spool.fill(60)
    spool.step()
    pushed = load(spark, spool.options.directory, pushFilters="true")
    condition = "topic = 't0' and sequence >= 100"
    found = sequences(pushed.where(condition))
    assert found == sequences(load(spark, spool.options.directory).where(condition))
    assert found
    assert found[0] >= 100


@pytest.mark.oldest_spark
def test_what_lies_before_a_number_is_not_opened(spark: SparkSession, spool: SpoolFixture) -> None:
    """`fromSequence` spares segments without any filter: these could not be read without an error."""
    spool.fill(60)
    spool.step()
    firsts = [first for first, _ in spool.layout.list_segments()]
    flip(spool.layout.segment(*spool.layout.list_segments()[0]), 400)
    options = {"mode": "failfast", "fromSequence": str(firsts[2])}
    assert sequences(load(spark, spool.options.directory, **options)) == list(range(firsts[2], 180))
    with pytest.raises(Exception, match="is damaged"):
        load(spark, spool.options.directory, mode="failfast").collect()
    with pytest.raises(Exception, match="fromSequence = 'x' is no number"):
        load(spark, spool.options.directory, fromSequence="x").collect()


def test_chosen_segments(spark: SparkSession, spool: SpoolFixture) -> None:
    """`segments` opens those of a spool that it names: another could not be read without an error."""
    spool.fill(60)
    spool.step()
    firsts = [first for first, _ in spool.layout.list_segments()]
    flip(spool.layout.segment(*spool.layout.list_segments()[0]), 400)
    chosen = json.dumps({spool.identity.spool.hex(): [firsts[1]]})
    rows = load(spark, spool.options.directory, mode="failfast", segments=chosen)
    assert sequences(rows) == list(range(firsts[1], firsts[2]))
    with pytest.raises(Exception, match="is damaged"):
        load(spark, spool.options.directory, mode="failfast", segments=json.dumps({"ab": [0]})).collect()


def test_a_frame_may_be_used_again(spark: SparkSession, spool: SpoolFixture) -> None:
    """One use of a DataFrame takes nothing from another, one after the other or in one query."""
    spool.fill(60)
    spool.step()
    frame = load(spark, spool.options.directory)
    assert sequences(frame.where("sequence = 5")) == [5]
    assert sequences(frame) == list(range(180))
    first, last = frame.where("sequence = 5"), frame.where("sequence >= 178")
    assert sequences(last.union(first)) == [5, 178, 179]


def test_without_push_down_the_setting_is_named(spark: SparkSession, spool: SpoolFixture) -> None:
    """In a session that does not let filters through, the error names the setting that does."""
    spool.fill(1)
    spool.step()
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "false")
    try:
        with pytest.raises(Exception, match=rf"'{setting}' is false\. Set it to true"):
            load(spark, spool.options.directory, pushFilters="true").where("topic = 't0'").collect()
        assert load(spark, spool.options.directory).where("topic = 't0'").count() == 2
    finally:
        spark.conf.set(setting, "true")


@pytest.mark.oldest_spark
def test_delivered_is_what_the_marks_say(spark: SparkSession, spool: SpoolFixture) -> None:
    """True of what is resolved and was not discarded, false of the others, null without marks."""
    spool.fill(60)
    spool.step()
    assert load(spark, spool.options.directory).where("delivered is null").count() == 180
    marks = Marks(spool.layout.delivery, SegmentList(spool.layout))
    info = marks.segment_list.segments[2]
    bitmap = np.zeros(CHUNK_BYTES, np.uint8)
    bitmap[0] = 0b1000_0010
    marks.commit(
        Changes(
            low_watermark=info.first_sequence - 3,
            discarded=[Discard(np.array([7]), 15, b"t0", 1)],
            chunks={(info.number, 0): bitmap},
        )
    )
    marks.close()
    rows = load(spark, spool.options.directory).where("delivered").select("sequence").collect()
    expected = {*range(info.first_sequence - 3)} - {7} | {info.first_sequence + 1, info.first_sequence + 7}
    assert {row.sequence for row in rows} == expected
    assert load(spark, spool.options.directory).where("not delivered").count() == 180 - len(expected)


def test_nothing_to_read(spark: SparkSession, spool: SpoolFixture, tmp_path: Path) -> None:
    """A spool without a message has no rows; a directory that is no spool is an error that names it."""
    assert load(spark, spool.options.directory).count() == 0
    with pytest.raises(Exception, match=r"nothing holds no spool"):
        load(spark, tmp_path / "nothing").count()


def test_a_path_is_named() -> None:
    """No path is an error, not a spool without messages: that would be an answer."""
    from pipeline.errors import BadOption
    from pipeline.source.schema import SCHEMA
    from pipeline.source.source import BruceSource

    for ask in (BruceSource({}).reader, BruceSource({"paths": "[]"}).streamReader):
        with pytest.raises(BadOption, match="no spool is named"):
            ask(SCHEMA)


def test_executors_need_no_lmdb() -> None:
    """The source's modules that executors import do not import LMDB."""
    code = "import sys, pipeline.source.source, pipeline.source.reader; sys.exit('lmdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
