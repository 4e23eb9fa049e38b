"""The effect of a flood of 100,000 messages on an honest sender behind it: `python -m tests.router.flood`.

For each kind of flood, one router over a spool of its own and the embedded Kafka. The flood is in the log;
then an honest message comes every 5 ms until all is resolved, and for 15 s at least. It prints the 99th
percentile of what honest messages of the first second took, and of all later ones, how long the flood took,
the processor's time, and the memory of the process. `--profile` says where the time went.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import multiprocessing
import pstats
import time
from collections.abc import Callable

import numpy as np

from dispatch.embedded import EmbeddedKafka
from spool.format.wire import encode
from tests.router.outlet import NO_AUTO, Outlet, anywhere

EVERY_S = 0.005
LEAST_S = 15.0
GOOD = 8
KINDS: dict[str, Callable[[int], bytes]] = {
    "good": lambda n: b"good-%d" % (n % GOOD),
    "illegal": lambda n: b"no name %d" % n,
    "unknown": lambda n: b"unknown-%d" % n,
    "thousand": lambda n: b"no name %d" % (n % 1000),
}


def run(
    kind: str, count: int, *, profile: bool = False, dead_letters: bool = False
) -> tuple[float, float, float, float, int]:
    """(p99 of early and of later honest messages, until the flood is resolved, of CPU, MiB)."""
    logging.disable()
    with EmbeddedKafka(topics=[("honest", 4), *((f"good-{n}", 4) for n in range(GOOD))]) as kafka:
        outlet = Outlet(
            kafka,
            kafka_properties=NO_AUTO,
            segment_bytes=4 << 20,
            grace_s=1.0,
            dead_letter_topic=b"good-0" if dead_letters else b"",
        )
        try:
            outlet.send(anywhere(10, topic=b"honest"))
            outlet.finish()
            outlet.send([encode(KINDS[kind](n), b"." * 40, timestamp=1) for n in range(count)], burst=400)
            with cProfile.Profile() if profile else _Nothing() as found:
                result = _honest_beside(outlet, count)
            if profile:
                pstats.Stats(found).sort_stats("cumulative").print_stats(35)  # type: ignore[arg-type]
            return result
        finally:
            outlet.close()


def _honest_beside(outlet: Outlet, count: int) -> tuple[float, float, float, float, int]:
    began = due = time.monotonic()
    sent: dict[int, float] = {}
    cpu = time.process_time()
    took: list[tuple[float, float]] = []
    flood_end = outlet.spool.synced
    flooded = 0.0
    while not flooded or sent or due - began < LEAST_S:
        now = time.monotonic()
        while due <= now and (not flooded or due - began < LEAST_S):
            sent[outlet.spool.append(anywhere(1, topic=b"honest"))] = due
            outlet.spool.step()
            due += EVERY_S
        if not outlet.router.step():
            time.sleep(0.001)
        waiting = np.array(list(sent), np.int64)
        done = waiting[outlet.acks._without(waiting, taken_too=False) == 0] if len(waiting) else waiting
        for one in done.tolist():
            at = sent.pop(one)
            took.append((at - began, time.monotonic() - at))
        if not flooded and (outlet.resolved >= flood_end or now - began > 60):
            flooded = time.monotonic() - began
    parts = [t for at, t in took if at < 1], [t for at, t in took if at >= 1]
    early, later = (float(np.percentile(part, 99)) for part in parts)
    return early, later, flooded, time.process_time() - cpu, _mib()


class _Nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _mib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 >> 20


def main() -> None:
    """Run the kinds that are named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--dead-letters", action="store_true")
    given = parser.parse_args()
    for kind in given.kinds or KINDS:
        # Each in a process of its own: memory is what this one took.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            early, later, seconds, cpu, mib = pool.apply(
                run, (kind, given.count), {"profile": given.profile, "dead_letters": given.dead_letters}
            )
        print(f"{kind:10} p99 {early:7.3f} s, then {later:7.3f} s; flood {seconds:7.3f} s", end="; ")
        print(f"CPU {cpu:6.2f} s; {mib:5} MiB", flush=True)


if __name__ == "__main__":
    main()
