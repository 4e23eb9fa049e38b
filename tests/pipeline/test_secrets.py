"""Kafka's secrets stay with their processes: nothing that a job on Spark shows or leaves behind has them."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dispatch.embedded import EmbeddedKafka
from tests.daemon import ROOT, RunningBruce, free_port
from tests.pipeline.standalone import PATIENCE_S, StandaloneCluster
from tests.router.outlet import keyed
from tools.fleets.jobs import BRUCECTL

pytestmark = [pytest.mark.spark, pytest.mark.long]

MARK = "s3cr3t"
SECRETS = {
    "sasl.username": "bruce",
    "sasl.password": f"{MARK}-of-sasl",
    "ssl.key.password": f"{MARK}-of-key",
    "ssl.keystore.password": f"{MARK}-of-keystore",
    # Neither is called a secret by its name.
    "sasl.oauthbearer.config": f"principal={MARK}-of-oauth",
    "ssl.key.pem": f"{MARK}-of-pem",
}
COUNT = 60
NOWHERE = "127.0.0.1:1"
PAGES = ["/jobs/", "/stages/", "/SQL/", "/environment/", "/executors/", "/storage/"]
API = ["environment", "jobs", "stages?details=true", "sql?details=true&planDescription=true", "allexecutors"]


@pytest.fixture
def cluster(requirements: None, tmp_path: Path) -> Iterator[StandaloneCluster]:
    """Executors in processes of their own."""
    (tmp_path / "cluster").mkdir()
    with StandaloneCluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Two brokers that know no passwords, each with a partition of the topic t."""
    with EmbeddedKafka(brokers=2, topics=[("t", 2)]) as running:
        for partition in range(2):
            running.leader("t", partition, partition + 1)
        yield running


def test_nothing_that_a_job_shows_has_a_secret(
    cluster: StandaloneCluster, kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """While a drain waits for a broker: processes, Spark's page and API; behind it and an audit: all files.

    Those are Spark's log of events, the logs of executors and cluster, and their directories. A job that
    fails does not show them either.
    """
    events, port = tmp_path / "events", free_port()
    events.mkdir()
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    with RunningBruce(tmp_path, NOWHERE, settings={"kafka": SECRETS}) as bruce:
        bruce.send(keyed(COUNT))
        bruce.await_status(lambda seen: seen.watermarks.synced == COUNT)
        bruce.kill9()
        bruce.configure({"kafka": {"bootstrap.servers": kafka.bootstrap_servers}})
        bruce.config.chmod(0o600)
        kafka.down(2)
        with cluster.job("drain", "--json", conf=conf, environ=bruce.environ) as job:
            ports = {int(server.rpartition(":")[2]) for server in kafka.bootstrap_servers.split(",")}
            cluster.await_executors(1, lambda one: one.sends_to(ports))
            shown = processes() | pages(f"http://127.0.0.1:{port}")
            kafka.up(2)
            assert json.loads(job.result())["delivered"] == COUNT
        with cluster.job("audit", "--json", conf=conf, environ=bruce.environ) as job:
            job.result()
        for name, value in (("ssl.ca.location", "/nowhere"), ("compression.type", "none at all")):
            bruce.configure({"kafka": {name: value, "security.protocol": "SSL"}})
            shown[f"audit with a wrong {name}"] = output(bruce, "audit")
    plans = shown["sql?details=true&planDescription=true"] + shown["/SQL/"]
    assert "bruce" in plans
    assert "spark.app.name" in shown["environment"]
    assert any("cmdline" in name and "pyspark" in text for name, text in shown.items())
    left = files(events) | files(cluster.directory)
    assert any("BatchScan bruce-kafka" in text for text in left.values())
    found = {name: re.findall(f".{{,40}}{MARK}.{{,20}}", text) for name, text in (shown | left).items()}
    assert {name: hits[:3] for name, hits in found.items() if hits} == {}


def processes() -> dict[str, str]:
    """Command line and environment of all that this test has started: driver, JVMs, workers, cluster."""
    shown = {}
    for process in psutil.Process().children(recursive=True):
        for name in ("cmdline", "environ"):
            path = Path(f"/proc/{process.pid}/{name}")
            with suppress(FileNotFoundError, ProcessLookupError):
                shown[str(path)] = path.read_bytes().decode(errors="replace")
    return shown


def pages(address: str) -> dict[str, str]:
    """Spark's page, and all pages that it links to; and its API."""
    shown: dict[str, str] = {}
    wanted = list(PAGES)
    while wanted:
        path = wanted.pop()
        if path in shown:
            continue
        shown[path] = get(address + path)
        links = re.findall(r'href="(?:http://[^/"]+)?(/(?:SQL|jobs|stages)/[^"#]+)', shown[path])
        wanted += [link.replace("&amp;", "&") for link in links if "kill" not in link and "sort" not in link]
    app = json.loads(get(f"{address}/api/v1/applications"))[0]["id"]
    return shown | {name: get(f"{address}/api/v1/applications/{app}/{name}") for name in API}


def get(address: str) -> str:
    """A page."""
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode("utf-8", "replace")
    return text


def files(directory: Path) -> Mapping[str, str]:
    """All files in it, by name."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): path.read_bytes().decode(errors="replace") for path in found}


def output(bruce: RunningBruce, job: str) -> str:
    """The output of a job that fails, on either stream."""
    done = subprocess.run(
        [*BRUCECTL, "spark", job, "--master", "local[1]"],
        cwd=ROOT,
        env=bruce.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode != 0
    return done.stdout + done.stderr
