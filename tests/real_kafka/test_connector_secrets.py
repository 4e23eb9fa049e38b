"""Spark's own connector gets a password (sasl.jaas.config): an audit by it shows it nowhere."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from spool.format.wire import encode
from tests.daemon import RunningBruce, free_port
from tests.pipeline.standalone import LOOK_S, PATIENCE_S, StandaloneCluster
from tests.pipeline.test_secrets import files, get, output, pages, processes
from tests.real_kafka.test_spark_audit import CONNECTOR, produce
from tests.router.outlet import NOW_MS
from tools.kafka_cluster import KafkaCluster
from tools.kafka_topics import make_topics
from tools.maven_jars import JarsMissing
from tools.waiting import wait_until

pytestmark = [pytest.mark.real_kafka, pytest.mark.spark, pytest.mark.long]

MARK = "s3cr3t"
USER = {"sasl.username": "auditor", "sasl.password": f'{MARK} "of" jaas'}
COUNT = 60


@pytest.fixture
def jars() -> str:
    """The connector's."""
    try:
        CONNECTOR.fetch()
    except JarsMissing as error:
        pytest.skip(f"no connector: {error}")
    return ",".join(map(str, CONNECTOR.directory.glob("*.jar")))


@pytest.fixture
def cluster(kafka_secured: KafkaCluster, tmp_path: Path) -> Iterator[StandaloneCluster]:
    """Executors in processes of their own."""
    (tmp_path / "cluster").mkdir()
    with StandaloneCluster(tmp_path / "cluster") as running:
        yield running


@pytest.fixture
def topic(kafka_secured: KafkaCluster) -> str:
    """A topic that the user may read."""
    name = f"audited-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka_secured.bootstrap, "log_level": 0})
    make_topics(kafka_secured.bootstrap, [NewTopic(name, 6)])
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    user = USER["sasl.username"]
    change = UserScramCredentialUpsertion(user, info, USER["sasl.password"].encode())
    admin.alter_user_scram_credentials([change])[user].result(60)
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    rights = [
        AclBinding(ResourceType.TOPIC, name, literal, f"User:{user}", "*", operation, allow)
        for operation in (AclOperation.READ, AclOperation.DESCRIBE)
    ]
    for done in admin.create_acls(rights).values():
        done.result(60)
    return name


def test_an_audit_by_the_connector(
    kafka_secured: KafkaCluster, cluster: StandaloneCluster, topic: str, jars: str, tmp_path: Path
) -> None:
    """While an executor hangs: processes, Spark's page and API; afterwards: events, logs, all files.

    An audit that fails since the password is wrong does not show it either.
    """
    events, port = tmp_path / "events", free_port()
    events.mkdir()
    conf = {
        "spark.jars": jars,
        "spark.ui.enabled": "true",
        "spark.ui.port": str(port),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    way = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", **USER}
    with RunningBruce(tmp_path, kafka_secured.sasl_bootstrap, settings={"kafka": way}) as bruce:
        bruce.send(encode(topic.encode(), b"%d" % i, key=b"k", timestamp=NOW_MS + i) for i in range(COUNT))
        bruce.await_status(lambda seen: seen.watermarks.synced == COUNT)
        bruce.kill9()
        spool = uuid.UUID(bruce.status().spool.uuid).bytes
        produce(kafka_secured.bootstrap, topic, spool, [*range(COUNT)])
        with cluster.job("audit", "--json", conf=conf, environ=bruce.environ) as job:
            _, still = cluster.await_executors(2, lambda one: one.is_registered)
            still.freeze()
            page = f"http://127.0.0.1:{port}"
            wait_until(lambda: "KafkaRelation" in plans(page), PATIENCE_S, "the plan", pause_s=LOOK_S)
            shown = processes() | pages(page)
            still.thaw()
            report = json.loads(job.result())
        assert (report["read_by"], report["total"]["lost"]) == ("kafka", 0)
        bruce.configure({"kafka": {"sasl.password": f"{MARK} but wrong"}})
        shown["a wrong password"] = refused = output(bruce, "audit")
        assert refused.count("Kafka refuses who we are") == 1
        assert "FAIL" not in refused
    assert "KafkaRelation" in shown["sql?details=true&planDescription=true"]
    left = files(events) | files(cluster.directory)
    assert any("sasl.jaas.config = [hidden]" in text for text in left.values())
    found = {name: re.findall(f".{{,40}}{MARK}.{{,20}}", text) for name, text in (shown | left).items()}
    assert {name: hits[:3] for name, hits in found.items() if hits} == {}


def plans(page: str) -> str:
    """The plans of all queries so far; nothing until there is a page."""
    try:
        app = json.loads(get(f"{page}/api/v1/applications"))[0]["id"]
        return get(f"{page}/api/v1/applications/{app}/sql?details=true&planDescription=true")
    except OSError:
        return ""
