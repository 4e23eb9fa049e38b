"""What tasks do to the worker that runs them."""

from __future__ import annotations

import gc

import pytest

from tests.spool.rig import Rig


def test_the_first_task_of_a_kind_freezes_what_is_imported(rig: Rig) -> None:
    """After a part was read, the collector passes over what is there; further ones change nothing."""
    pytest.importorskip("pyspark")
    from pipeline.plan import plan_spool
    from pipeline.reader import PERMISSIVE, SegmentReader
    from pipeline.schema import SCHEMA
    from pipeline.worker import freeze_imports

    rig.fill(200)
    rig.step()
    reader = SegmentReader(lambda _: plan_spool(rig.layout).parts, SCHEMA, PERMISSIVE)
    first, second, *_ = reader.partitions()
    freeze_imports.cache_clear()
    gc.unfreeze()
    try:
        assert sum(batch.num_rows for batch in reader.read(first))
        frozen = gc.get_freeze_count()
        assert frozen > len(gc.get_objects())
        assert sum(batch.num_rows for batch in reader.read(second))
        assert gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()
        freeze_imports.cache_clear()
