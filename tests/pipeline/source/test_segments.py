"""Segments as executors read them: packed, damaged, without a name, or gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spool.format.wire import encode
from tests.spool.fixture import SpoolFixture
from tests.spool.stored import pack_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.pipeline.source.test_source import load, sequences

pytestmark = pytest.mark.spark


def test_every_segment_is_read_once(spark: SparkSession, spool: SpoolFixture) -> None:
    """Sealed segments and the live one together hold each message once; small ones are one partition."""
    sent = spool.fill(60, messages=5)
    spool.step()
    frame = load(spark, spool.options.directory)
    rows = frame.select("sequence", "value").orderBy("sequence").collect()
    assert [row.sequence for row in rows] == list(range(300))
    assert all(bytes(row.value) in datagram for row, datagram in zip(rows, sent, strict=True))
    assert frame.rdd.getNumPartitions() == 1 < len(spool.layout.list_segments())


def test_without_an_index_good_frames_count(spark: SparkSession, spool: SpoolFixture) -> None:
    """In a copy that lacks the index every good frame is read, also those of a segment without a name."""
    spool.fill(3)
    spool.crash()
    for path in spool.layout.index.iterdir():
        path.unlink()
    assert not spool.layout.list_segments()
    assert sequences(load(spark, spool.options.directory)) == list(range(9))


@pytest.mark.oldest_spark
def test_packed_segments_are_rows_too(spark: SparkSession, spool: SpoolFixture) -> None:
    """The same rows before and after; what is in use is not packed."""
    spool.fill(60)
    spool.step()
    before = load(spark, spool.layout.directory).orderBy("sequence").collect()
    for pair in spool.layout.list_segments()[:-1]:
        pack_file(spool.layout.segment(*pair))
    assert load(spark, spool.layout.directory).orderBy("sequence").collect() == before
    assert len(before) == 180


def test_a_segment_that_goes_before_it_is_read(spool: SpoolFixture) -> None:
    """It ends the query, or, where that was asked for, is passed over."""
    from pipeline.errors import SegmentGone
    from pipeline.source.schema import SCHEMA
    from pipeline.source.source import BruceSource

    spool.append([encode(b"t", b"v")] * 3)
    spool.step()
    spool.crash()
    path = str(spool.options.directory)
    readers = {
        answer: BruceSource({"path": path, "failOnDataLoss": answer}).reader(SCHEMA)
        for answer in ("true", "false")
    }
    (part,) = readers["true"].partitions()
    for reader in readers.values():
        assert [batch.num_rows for batch in reader.read(part)] == [3]
    spool.layout.segment(*spool.layout.list_segments()[0]).unlink()
    with pytest.raises(SegmentGone, match=r"segment 1 of .* was removed while the job ran; start it again"):
        list(readers["true"].read(part))
    assert list(readers["false"].read(part)) == []
