"""`spark.read.format("bruce")`: the stored messages of spools as a DataFrame.

    spark.read.format("bruce").load("/var/lib/bruce")
    spark.read.format("bruce").option("host", "web1").schema("topic string, value binary").load("/fleet/*")

One segment is one input partition. Columns are those of `pipeline.schema`, all of them or the ones that a
schema names; the fewer, the faster. Option `host` names the host whose spools these are.

Damaged frames are passed over.
"""

from __future__ import annotations

import json
from functools import partial

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pipeline.errors import BadSchema
from pipeline.reader import SegmentReader
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
        return SegmentReader(partial(_plan, _paths(dict(self.options)), self.options.get("host")), schema)


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


def _plan(paths: list[str], host: str | None) -> list[Part]:
    # Here and not above: executors import this module, and do without LMDB.
    from pipeline.plan import find_spools, plan_spool  # noqa: PLC0415

    return [part for layout in find_spools(paths) for part in plan_spool(layout, host).parts]
