"""`format("bruce")` in sessions of other people: nothing registers it; by Connect, and in a pipeline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka import Producer

from dispatch.embedded import EmbeddedKafka
from tests.spool.fixture import SpoolFixture

ROOT = Path(__file__).resolve().parents[2]
COUNT = 30

LIGHT = """
import json, sys
before = set(sys.modules)
for name in ("numba", "pyarrow", "lmdb", "confluent_kafka", "pipeline", "spool"):
    sys.modules[name] = None
import pyspark_bruce, pyspark_bruce_kafka
said = []
for module in (pyspark_bruce, pyspark_bruce_kafka):
    try:
        module.DefaultSource({}).schema()
    except ImportError as error:
        said.append(str(error))
print(json.dumps([pyspark_bruce.DefaultSource.name(), pyspark_bruce_kafka.DefaultSource.name(), *said]))
"""

PLAIN = """
import json, sys
from pyspark.sql import SparkSession

spool, kafka, out = sys.argv[1:]
builder = SparkSession.builder.config("spark.sql.warehouse.dir", out)
session = (builder.remote("local[2]") if CONNECT else builder.master("local[2]")).getOrCreate()
found = {"rows": session.read.format("bruce").load(spool).where("topic = 't1'").count()}
session.sql(f"CREATE TEMPORARY VIEW v USING bruce OPTIONS (path '{spool}')")
found["view"] = session.sql("SELECT count(*) AS n FROM v").collect()[0].n
query = (
    session.readStream.format("bruce").load(spool).writeStream.format("parquet")
    .option("checkpointLocation", out + "/checkpoint").trigger(availableNow=True).start(out + "/stream")
)
query.awaitTermination()
found["stream"] = session.read.parquet(out + "/stream").count()
records = session.read.format("bruce-kafka").option("bootstrap.servers", kafka).option("topics", "t").load()
found["kafka"] = records.count()
try:
    session.read.format("bruce").option("hots", "x").load(spool).count()
except Exception as error:
    found["error"] = str(error)
print(json.dumps(found))
"""

PIPELINE = """
from pyspark import pipelines
from pyspark.sql import SparkSession

session = SparkSession.active()


@pipelines.table
def messages():
    return session.readStream.format("bruce").load({spool!r})


@pipelines.materialized_view
def by_topic():
    return session.read.table("messages").groupBy("topic").count()
"""


def environment() -> dict[str, str]:
    """Spark's own variables, as docs/spark.md has them."""
    home = str(Path(pyspark.__file__).parent)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    ours = {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": home, "PYTHONPATH": path}
    return {**os.environ, **ours, "SPARK_LOCAL_IP": "127.0.0.1"}


def run(*command: str, **more: Any) -> str:
    """Its standard output."""
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=300, check=False, **more
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fill(spool: SpoolFixture) -> str:
    """A third of its messages are of the topic t1, the others of t0; the path of the spool."""
    spool.fill(COUNT // 3)
    spool.step()
    spool.crash()
    return str(spool.layout.directory)


def test_it_imports_nothing_heavy() -> None:
    """Spark imports these packages for every session: they need it alone, and say at use what is missing."""
    names = json.loads(run(sys.executable, "-c", LIGHT))
    assert names[:2] == ["bruce", "bruce-kafka"]
    for name, sentence in zip(names[:2], names[2:], strict=True):
        assert sentence.startswith(
            f'format("{name}") needs bruce-spool[spark] whole in the Python that Spark'
        )


@pytest.mark.spark
@pytest.mark.parametrize("connect", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_session_of_other_people(spool: SpoolFixture, tmp_path: Path, *, connect: bool) -> None:
    """DataFrames, SQL, streams, and records of Kafka; an unknown option is refused by a sentence."""
    path, out = fill(spool), tmp_path / "out"
    with EmbeddedKafka(brokers=1, topics=[("t", 1)]) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number in range(7):
            producer.produce("t", b"%d" % number)
        assert producer.flush(30) == 0
        program = PLAIN.replace("CONNECT", str(connect))
        said = run(sys.executable, "-c", program, path, kafka.bootstrap_servers, str(out), cwd=tmp_path)
    found = json.loads(said.splitlines()[-1])
    assert "there is no option 'hots'; the options are host, mode" in found.pop("error")
    assert found == {"rows": COUNT // 3, "view": COUNT, "stream": COUNT, "kafka": 7}


@pytest.mark.long
@pytest.mark.spark
def test_a_declarative_pipeline(spool: SpoolFixture, tmp_path: Path) -> None:
    """A table that streams from a spool, and a view of it, in files that know only the name of bruce."""
    from pyarrow import parquet

    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations/messages.py").write_text(PIPELINE.format(spool=fill(spool)))
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: spooled\nstorage: {(tmp_path / 'storage').as_uri()}\n"
        "libraries:\n  - glob:\n      include: transformations/**\n"
    )
    run(str(Path(pyspark.__file__).parent / "bin/spark-pipelines"), "run", cwd=tmp_path)
    table = parquet.read_table(tmp_path / "spark-warehouse/by_topic").to_pylist()
    assert {row["topic"]: row["count"] for row in table} == {"t0": 2 * COUNT // 3, "t1": COUNT // 3}
