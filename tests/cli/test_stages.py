"""How busy each stage is: each process on the way of a message is one, and the schema knows it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from cli.snapshot import ROLES
from cli.stages import STAGES, cpu_seconds
from status.snapshot import WorkerView

SCHEMA = Path(__file__).resolve().parents[2] / "status/schema.json"


def test_every_process_is_a_stage() -> None:
    """But for the supervisor, which is on no way, and the delivery worker, which is several."""
    assert STAGES.keys() == {*ROLES} - {"supervisor", "delivery"}
    flow = json.loads(SCHEMA.read_text())["$defs"]["flow"]["properties"]["stages"]
    pattern = flow["items"]["properties"]["stage"]["pattern"]
    for stage in (*STAGES.values(), "router", "broker-7"):
        assert re.search(pattern, stage)


def test_processor_time() -> None:
    """Of those that live, in seconds; the main thread of the delivery worker is the router."""
    used = sum(os.times()[:2])
    gone = 2**22 + 1
    found = cpu_seconds(
        [
            WorkerView("stream", os.getpid(), 0, alive=True),
            WorkerView("delivery", os.getpid(), 0, alive=True),
            WorkerView("keeper", gone, 0, alive=False),
        ]
    )
    assert set(found) == {"stream", "router"}
    assert abs(found["stream"] - used) < 0.5 + 0.1 * used
    assert 0 <= found["router"] <= found["stream"]
