"""`spark.read.format("bruce")`: the stored messages of spools as a DataFrame.

    spark.read.format("bruce").load("/var/lib/bruce")
    spark.read.format("bruce").option("host", "web1").schema("topic string, value binary").load("/fleet/*")
    spark.read.format("bruce").load("s3://bucket/fleet/*?region=eu-central-1")

A path is one that executors can open, or an address that pyarrow.fs knows. One segment is one input
partition, a large one several. Columns are those of `pipeline.source.schema`, all or those that a schema
names; the fewer, the faster.

A read error of the disk (EIO) ends the query, since it does not tell what is stored, unless the schema names
the column `unread` (pipeline.source.schema). Then the query reads all that it can, and has a row for each
unreadable range; with `mode = failfast` the query ends all the same.

Options:

    host   names the host whose spools these are
    mode   how to treat damaged frames: `permissive` (default) makes a row of each range of them when the
           schema has the column `damaged`, `dropmalformed` skips them, `failfast` ends the query
    pushFilters   `true`: filters on topic, sequence and times go to the footers (`pipeline.source.pushdown`),
           and segments without a wanted row are not opened. Only for a DataFrame that is read once, in
           one place of one query: PySpark 4.3 gives each later use the segments of the first. It needs
           Spark's setting `spark.sql.python.filterPushdown.enabled`, and says so. PySpark 4.0 hands no filter
           to a source: then all segments are opened, with a warning on standard error

    fromSequence   a number: segments and frames that end before it are not opened. A filter drops the other
           messages before it. It needs no setting of Spark, and holds for every spool; or a JSON object with
           a number by spool, for those that it names: {"0123...": 4096}

    segments   a JSON object with a list by spool, for those that it names: the first sequence numbers of the
           segments to open; all others of the spool are passed over

    failOnDataLoss   `true` (default): a segment that is removed after it is planned and before it is read
           ends the query; `false`: it is skipped

As a stream (`spark.readStream`, its offsets in `pipeline.source.offsets`) it follows the committed messages:

    maxBytesPerTrigger   of all spools together, about; by default all there is. From PySpark 4.2 on
    failOnDataLoss       `true` (default): the stream ends when messages are removed before it reads them;
                         `false`: it goes on with the rest
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from pipeline.errors import BadOption, BadSchema
from pipeline.source.options import (
    OF_READER,
    OF_STREAM,
    Choice,
    batch_bytes,
    check_known,
    fails_on_loss,
    mode_of,
    paths_of,
    pushes_filters,
)
from pipeline.source.reader import PruningReader, SegmentReader, WholeStream
from pipeline.source.rows import skips_read_errors
from pipeline.source.schema import CONTENT, SCHEMA, UNREAD
from pipeline.source.segments import DamagedFile, Part
from pipeline.spark_release import FILTERS, READ_LIMITS, has, version

KNOWN = StructType([*SCHEMA.fields, UNREAD, CONTENT])
"""All columns."""


class BruceSource(DataSource):
    """The data source `bruce`."""

    @classmethod
    def name(cls) -> str:
        return "bruce"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> SegmentReader:
        check_schema(schema, KNOWN)
        check_known(self.options, OF_READER)
        prunes = pushes_filters(self.options)
        if prunes and not has(FILTERS):
            warnings.warn(
                f"pushFilters spares nothing here: PySpark {version()} tells a source of no filter; Spark "
                "filters what is read of all segments",
                stacklevel=2,
            )
        kind = PruningReader if prunes else SegmentReader
        plan = partial(_plan, **self._spools(schema), choice=Choice.of(self.options))
        return kind(plan, schema, mode_of(self.options), fail_on_loss=fails_on_loss(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """The reader of a stream, as Spark asks for it. Raises BadOption, BadSchema."""
        check_schema(schema, KNOWN)
        check_known(self.options, OF_STREAM)
        # Here and not above: executors import this module, and do without LMDB.
        from pipeline.source.offsets import StreamOffsets  # noqa: PLC0415

        mode, limit = mode_of(self.options), batch_bytes(self.options)
        offsets = StreamOffsets(**self._spools(schema), fail_on_loss=fails_on_loss(self.options))
        if has(READ_LIMITS):
            # Older releases of PySpark lack its base classes.
            from pipeline.source.reader import LimitedStream  # noqa: PLC0415

            return LimitedStream(offsets, schema, mode, limit)
        if limit:
            raise BadOption(
                f"maxBytesPerTrigger needs PySpark 4.2 or newer, and this is {version()}, which lets a batch "
                "take all there is: leave the option away"
            )
        return WholeStream(offsets, schema, mode)

    def _spools(self, schema: StructType) -> dict[str, Any]:
        return {
            "paths": paths_of(self.options),
            "host": self.options.get("host"),
            "delivered": "delivered" in schema.names,
            "skip_read_errors": skips_read_errors(schema.names, mode_of(self.options)),
        }


def check_schema(wanted: StructType, known: StructType) -> None:
    """Raise BadSchema unless each wanted column is a known one, of the same type."""
    types = {field.name: field.dataType for field in known.fields}
    for field in wanted.fields:
        if field.name not in types:
            raise BadSchema(f"there is no column {field.name!r}; the columns are {', '.join(types)}")
        if field.dataType != types[field.name]:
            expected = types[field.name].simpleString()
            raise BadSchema(f"column {field.name!r} is of type {expected}")


def _plan(
    filters: Sequence[Any],
    *,
    paths: list[str],
    host: str | None,
    delivered: bool,
    skip_read_errors: bool,
    choice: Choice,
) -> list[Part | DamagedFile]:
    # Here and not above: executors import this module, and do without LMDB.
    from pipeline.source.outcomes import tell_delivered  # noqa: PLC0415
    from pipeline.source.plan import plan_spools  # noqa: PLC0415
    from pipeline.source.pushdown import GreaterThanOrEqual, choose  # noqa: PLC0415

    parts: list[Part | DamagedFile] = []
    for plan in plan_spools(paths, host, skip_read_errors=skip_read_errors):
        begin, named = choice.begin(plan.spool), choice.segments.get(plan.spool)
        wanted = [*filters, *([GreaterThanOrEqual(("sequence",), begin)] if begin else [])]
        narrow = plan if named is None else plan.narrow(set(named))
        parts += choose(tell_delivered(narrow) if delivered else narrow, wanted)
    return parts
