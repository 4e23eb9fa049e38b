"""`spark.read.format("bruce")`: the stored messages of spools as a DataFrame.

    spark.read.format("bruce").load("/var/lib/bruce")
    spark.read.format("bruce").option("host", "web1").schema("topic string, value binary").load("/fleet/*")

One segment is one input partition, a large one several. Columns are those of `pipeline.schema`, all or those
that a schema names; the fewer, the faster. Filters on topic, sequence and times are pushed down: segments
whose footers say that they hold nothing of it are not opened (`pipeline.pushdown`).

Options:

    host   names the host whose spools these are
    mode   what becomes of damaged frames: `permissive` (default) makes a row of each range of them when the
           schema has the column `damaged`, `dropmalformed` passes them over, `failfast` ends the query
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pipeline.errors import BadOption, BadSchema
from pipeline.reader import MODES, SegmentReader
from pipeline.schema import SCHEMA
from pipeline.segments import Part


class BruceSource(DataSource):
    """The data source `bruce`."""

    @classmethod
    def name(cls) -> str:
        return "bruce"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> SegmentReader:
        check_schema(schema, SCHEMA)
        plan = partial(
            _plan,
            paths=_paths(dict(self.options)),
            host=self.options.get("host"),
            delivered="delivered" in schema.names,
        )
        return SegmentReader(plan, schema, _mode(self.options.get("mode", MODES[0])))


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
    """What was given to `load`: one path, or a list, which Spark hands on as JSON."""
    paths = json.loads(options.get("paths", "[]"))
    return [*paths, *([options["path"]] if "path" in options else [])]


def _mode(text: str) -> str:
    if (mode := text.lower()) not in MODES:
        raise BadOption(f"mode = {text!r} is none of {', '.join(MODES)}")
    return mode


def _plan(filters: Sequence[Any], *, paths: list[str], host: str | None, delivered: bool) -> list[Part]:
    # Here and not above: executors import this module, and do without LMDB.
    from pipeline.outcomes import tell_delivered  # noqa: PLC0415
    from pipeline.plan import find_spools, plan_spool  # noqa: PLC0415
    from pipeline.ranges import choose  # noqa: PLC0415

    plans = (plan_spool(layout, host) for layout in find_spools(paths))
    return [part for plan in plans for part in choose(tell_delivered(plan) if delivered else plan, filters)]
