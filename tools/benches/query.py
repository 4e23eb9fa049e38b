"""Questions in SQL: DuckDB in one process and Spark, over a spool and over Parquet of the same rows.

Within a session each question is asked of all four by turns, after a turn that does not count. Then the
commands, from the shell to the last row: `brucectl query` beside `brucectl spark query`; and `audit`, `stats`
and `archive` of messages that are in an embedded Kafka, beside the same on Spark. Ratios are by rate: above 1
the spool, or the command without Java, is faster.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

from spool.shared.state import Field
from tools.benches.bench import Bench, accept
from tools.benches.drain import OVERHEAD_BYTES, TIMEOUT_S
from tools.benches.report import Figure
from tools.benches.spark import ROOM, cost, fill
from tools.bruce_process import NOWHERE
from tools.load import LoadOptions
from tools.waiting import wait_until

QUESTIONS = {
    "all columns": "SELECT max(hash({columns})) FROM {rows}",
    "count(*)": "SELECT count(*) FROM {rows}",
    "a filter on topic": "SELECT count(value) FROM {rows} WHERE topic = 'none'",
    "sum of lengths": "SELECT sum(octet_length(value)) FROM {rows}",
}
"""In the SQL of both engines."""
REQUIRED = {"all columns": 0.7, "count(*)": 0.6, "a filter on topic": 0.6}
"""Of Spark on the spool, against Parquet in Spark."""
KEPT = {"spool": {**ROOM["spool"], "keep_delivered_hours": 1}}
COLUMNS = (
    "host, spool, segment, frame_offset, sequence, timestamp_ms, kind, topic, partition_key, key, value, "
    "uid, pid"
)
"""Those that both engines can hash."""
COMMAND = "SELECT topic, count(*), sum(octet_length(value)) FROM spool GROUP BY topic"


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much."""
    parser.add_argument("--count", type=int, default=3_000_000, help="messages; default 3,000,000")
    parser.add_argument("--bytes", type=int, default=120, help="of key and value together; default 120")
    parser.add_argument("--audited", type=int, default=329_000, help="messages of the audit; default 329,000")


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """Fill a spool, write it as Parquet, ask by turns."""
    count, parquet = bench.scaled(options.count), bench.directory / "parquet"
    with bench.bruce(NOWHERE, settings=ROOM) as bruce:
        fill(bruce, count, options.bytes)
        asked = ask_by_turns(bench, bruce.spool, parquet)
        for question, (duck, duck_parquet, spark, spark_parquet) in asked.items():
            millions = count / 1e6
            yield Figure(
                f"{question}: Spark, spool against Parquet",
                [millions / one for one in spark],
                "M rows/s",
                at_least=REQUIRED.get(question),
                baseline=[millions / one for one in spark_parquet],
            )
            yield Figure(
                f"{question}: DuckDB, spool against Parquet",
                [millions / one for one in duck],
                "M rows/s",
                baseline=[millions / one for one in duck_parquet],
            )
        ours = [command("query", COMMAND, bruce.spool) for _ in range(bench.repeat)]
        theirs = [command("spark", "query", COMMAND, bruce.spool) for _ in range(bench.repeat)]
    yield Figure(
        "brucectl query against brucectl spark query",
        [1 / one for one in ours],
        "commands/s",
        baseline=[1 / one for one in theirs],
    )
    yield from measure_jobs(bench, options)


def measure_jobs(bench: Bench, options: argparse.Namespace) -> Iterator[Figure]:
    """The same messages, with both engines."""
    count = bench.scaled(options.audited)
    with (
        bench.kafka("embedded", brokers=1, partitions=12) as kafka,
        bench.bruce(kafka.bootstrap, settings=KEPT) as bruce,
    ):
        bruce.start()
        size = options.bytes + OVERHEAD_BYTES
        accept(bruce, LoadOptions(bruce.socket, count=count, sizes=(size, size)), TIMEOUT_S)
        wait_until(
            lambda: bruce.word(Field.LOW_WATERMARK) >= count,
            TIMEOUT_S,
            "all that was accepted to be delivered",
        )
        bruce.stop()
        for job in ("audit", "stats", "archive"):
            seconds: dict[str, list[float]] = {"": [], "spark": []}
            for turn, (engine, found) in product(range(bench.repeat), seconds.items()):
                more: dict[str, tuple[object, ...]] = {
                    "audit": ("--config", bruce.config, "--bootstrap-servers", kafka.bootstrap),
                    "archive": ("--to", bench.directory / f"archive-{engine}-{turn}"),
                }
                found.append(command(*filter(None, [engine]), job, bruce.spool, *more.get(job, ())))
            yield Figure(
                f"brucectl {job} against brucectl spark {job}",
                [count / one for one in seconds[""]],
                "msg/s",
                baseline=[count / one for one in seconds["spark"]],
            )


def ask_by_turns(bench: Bench, spool: Path, parquet: Path) -> dict[str, tuple[list[float], ...]]:
    """By question, the seconds of each turn: DuckDB on the spool and on Parquet, Spark on both."""
    import duckdb  # noqa: PLC0415  (only this bench needs it, and Java)

    from pipeline.embedded.dataset import SpoolDataset  # noqa: PLC0415
    from pipeline.session import open_session  # noqa: PLC0415
    from pipeline.spark_query import query  # noqa: PLC0415

    found: dict[str, tuple[list[float], ...]] = {}
    with open_session(f"local[{len(os.sched_getaffinity(0))}]") as session:
        session.read.format("bruce").load(str(spool)).write.mode("overwrite").parquet(str(parquet))
        session.read.parquet(str(parquet)).createOrReplaceTempView("other")
        connection = duckdb.connect()
        connection.register("spool", SpoolDataset([str(spool)]))
        connection.register("other", connection.read_parquet(f"{parquet}/*.parquet"))
        for name, text in QUESTIONS.items():
            ours, other = (text.format(columns=COLUMNS, rows=table) for table in ("spool", "other"))
            asks: list[Callable[[], object]] = [
                partial(lambda sql: connection.execute(sql).fetchall(), ours),
                partial(lambda sql: connection.execute(sql).fetchall(), other),
                # With the columns that the question names, as the command reads them.
                partial(lambda sql: query(session, sql, [str(spool)], None).collect(), ours),
                partial(lambda sql: session.sql(sql).collect(), other),
            ]
            turns = [[cost(ask)[0] for ask in asks] for _ in range(1 + bench.repeat)][1:]
            found[name] = tuple(map(list, zip(*turns, strict=True)))
    return found


def command(*words: object) -> float:
    """The seconds of one command of brucectl, from its start to its end."""
    program = [sys.executable, "-c", "from cli.app import brucectl; brucectl()", *map(str, words)]
    began = time.monotonic()
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began
