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

    failOnDataLoss   `true` (default): a segment that is removed after it is planned and before it is read
           ends the query; `false`: it is skipped

As a stream (`spark.readStream`, its offsets in `pipeline.source.offsets`) it follows the committed messages:

    maxBytesPerTrigger   of all spools together, about; by default all there is. From PySpark 4.2 on
    failOnDataLoss       `true` (default): the stream ends when messages are removed before it reads them;
                         `false`: it goes on with the rest
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from pipeline.errors import BadOption, BadSchema
from pipeline.source.reader import MODES, PruningReader, SegmentReader, WholeStream, skips_read_errors
from pipeline.source.schema import SCHEMA, UNREAD
from pipeline.source.segments import DamagedFile, Part
from pipeline.spark_release import FILTERS, READ_LIMITS, has, version

EVERY = ""
KNOWN = StructType([*SCHEMA.fields, UNREAD])
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
        prunes = _choice(self.options, "pushFilters", ("false", "true")) == "true"
        if prunes and not has(FILTERS):
            warnings.warn(
                f"pushFilters spares nothing here: PySpark {version()} tells a source of no filter; Spark "
                "filters what is read of all segments",
                stacklevel=2,
            )
        kind = PruningReader if prunes else SegmentReader
        plan = partial(_plan, **self._spools(schema), first=_first(self.options))
        return kind(plan, schema, _mode(self.options), fail_on_loss=_fails_on_loss(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """The reader of a stream, as Spark asks for it. Raises BadOption, BadSchema."""
        check_schema(schema, KNOWN)
        # Here and not above: executors import this module, and do without LMDB.
        from pipeline.source.offsets import StreamOffsets  # noqa: PLC0415

        mode, limit = _mode(self.options), _bytes(self.options)
        offsets = StreamOffsets(**self._spools(schema), fail_on_loss=_fails_on_loss(self.options))
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
            "paths": _paths(dict(self.options)),
            "host": self.options.get("host"),
            "delivered": "delivered" in schema.names,
            "skip_read_errors": skips_read_errors(schema, _mode(self.options)),
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


def _paths(options: dict[str, str]) -> list[str]:
    """The arguments of `load`: one path, or a list, which Spark hands on as JSON. Raises BadOption."""
    named = json.loads(options.get("paths", "[]"))
    paths = [*named, *([options["path"]] if "path" in options else [])]
    if not paths:
        raise BadOption("no spool is named: load(PATH), a directory, a glob, an address, or a list of them")
    return paths


def _mode(options: Mapping[str, str]) -> str:
    return _choice(options, "mode", MODES)


def _fails_on_loss(options: Mapping[str, str]) -> bool:
    return _choice(options, "failOnDataLoss", ("true", "false")) == "true"


def _choice(options: Mapping[str, str], name: str, values: Sequence[str]) -> str:
    """The option as one of these values; the first by default."""
    text = options.get(name, values[0])
    if text.lower() not in values:
        raise BadOption(f"{name} = {text!r} is none of {', '.join(values)}")
    return text.lower()


def _bytes(options: Mapping[str, str]) -> int | None:
    if (found := _number(options, "maxBytesPerTrigger")) == 0:
        raise BadOption("maxBytesPerTrigger = '0' is no number of bytes")
    return found


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is not None and not text.isdecimal():
        raise BadOption(f"{name} = {text!r} is no number")
    return None if text is None else int(text)


def _first(options: Mapping[str, str]) -> Mapping[str, int]:
    """`fromSequence`: by spool, and under EVERY for those that it does not name. Raises BadOption."""
    text = options.get("fromSequence", "0")
    if text.isdecimal():
        return {EVERY: int(text)}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(type(one) is int and one >= 0 for one in found.values()):
        raise BadOption(f"fromSequence = {text[:100]!r} is no number, and no JSON object of numbers by spool")
    return {EVERY: 0, **found}


def _plan(
    filters: Sequence[Any],
    *,
    paths: list[str],
    host: str | None,
    delivered: bool,
    skip_read_errors: bool,
    first: Mapping[str, int],
) -> list[Part | DamagedFile]:
    # Here and not above: executors import this module, and do without LMDB.
    from pipeline.source.outcomes import tell_delivered  # noqa: PLC0415
    from pipeline.source.plan import plan_spools  # noqa: PLC0415
    from pipeline.source.pushdown import GreaterThanOrEqual, choose  # noqa: PLC0415

    parts: list[Part | DamagedFile] = []
    for plan in plan_spools(paths, host, skip_read_errors=skip_read_errors):
        begin = first.get(plan.spool, first[EVERY])
        wanted = [*filters, *([GreaterThanOrEqual(("sequence",), begin)] if begin else [])]
        parts += choose(tell_delivered(plan) if delivered else plan, wanted)
    return parts
