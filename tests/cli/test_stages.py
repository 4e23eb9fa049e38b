"""How busy each stage is: each process on the way of a message is one, and the schema knows it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
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


# Its threads are called as those of librdkafka; each has worked, and rests when it says so.
WORKED = """
import ctypes, os, threading, time

worked = threading.Barrier(5)

def work(name, seconds):
    ctypes.CDLL(None).prctl(15, name)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    worked.wait()
    threading.Event().wait()

for name, seconds in ((b"rdk:broker7", 0.3), (b"rdk:broker12", 0), (b"rdk:broker-1", 0), (b"rdk:main", 0)):
    threading.Thread(target=work, args=(name, seconds), daemon=True).start()
worked.wait()
print(sum(os.times()[:2]), flush=True)
input()
"""


def test_processor_time() -> None:
    """Of those that live, in seconds; the main thread of the delivery worker is the router."""
    child = [sys.executable, "-c", WORKED]
    with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        used = float(process.stdout.readline())
        found = cpu_seconds(
            [
                WorkerView("stream", process.pid, 0, alive=True),
                WorkerView("delivery", process.pid, 0, alive=True),
                WorkerView("keeper", 2**22 + 1, 0, alive=False),
            ]
        )
        process.kill()
    assert found.keys() == {"stream", "router", "broker-7", "broker-12"}
    assert abs(found["stream"] - used) < 0.5 + 0.1 * used
    assert 0.2 < found["broker-7"] <= found["stream"]
    assert 0 <= found["router"] <= found["stream"] - found["broker-7"] + 0.1
