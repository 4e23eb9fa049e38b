"""`brucectl spark audit`: what became of every message, of a fleet on a cluster."""

from __future__ import annotations

from cli.commands.arguments import ConfigFile, examples
from cli.commands.audit import Audited, By, Document, ToParquet, Unstamped, options_of, tell
from cli.commands.jobs import BootstrapServers, Spools, kafka_properties, spool_paths
from cli.commands.spark.options import Conf, Master, job_session

EXAMPLES = examples(
    "brucectl spark audit /var/lib/bruce --bootstrap-servers kafka1:9092",
    "brucectl spark audit '/mnt/fleet/*/bruce' --config /etc/bruce/bruce.toml --json",
    "brucectl spark audit --by hour --by host --master yarn",
)


def audit(
    spools: Spools = None,
    *,
    bootstrap_servers: BootstrapServers = None,
    topic: Audited = None,
    by: By = None,
    unstamped: Unstamped = False,
    parquet: ToParquet = None,
    as_json: Document = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Count what became of every message in the spools of a fleet, on Spark: brucectl audit, on a cluster.

    The counts, the report and the exit codes are those of brucectl-audit(1). Kafka is read by Spark's own
    connector where the session has its jars (--conf spark.jars=...) and can be told the [kafka] properties
    that lead to the brokers; else by bruce's own source. Needs Java 17.

    With --json the document of brucectl audit, version 1.
    """
    from cli.config.config import load_config

    settings = load_config(config)
    properties = kafka_properties(settings, bootstrap_servers)
    with job_session(master, conf) as session:
        from pipeline.audit_job import run_audit
        from pipeline.spark_engine import SparkEngine

        options = options_of(settings, topic, by, unstamped=unstamped)
        report = run_audit(SparkEngine(session), spool_paths(spools, settings), properties, options)
    tell(report, parquet, as_json=as_json)
