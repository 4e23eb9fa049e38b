"""`brucectl spark stats`: the figures of the spools of a fleet, on a cluster."""

from __future__ import annotations

from cli.commands.arguments import AsJson, ConfigFile, Topics, examples
from cli.commands.jobs import Spools, spool_paths
from cli.commands.spark.options import Conf, Master, job_session
from cli.commands.stats import Hours, tell

EXAMPLES = examples(
    "brucectl spark stats '/mnt/fleet/*/bruce' --hours --topic orders",
    "brucectl spark stats '/mnt/fleet/*/bruce' --master yarn --json | jq '.topics[] | {topic, peak}'",
)


def stats(
    spools: Spools = None,
    *,
    hours: Hours = False,
    topic: Topics = None,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Measure what the spools of a fleet hold, on Spark: brucectl stats, on a cluster.

    The figures are those of brucectl-stats(1). Needs Java 17.

    With --json the document of brucectl stats, version 1.
    """
    from cli.config.config import load_config

    paths = spool_paths(spools, load_config(config))
    with job_session(master, conf) as session:
        from pipeline.spark_engine import SparkEngine
        from pipeline.stats import run_stats

        found = run_stats(SparkEngine(session), paths, topic)
    tell(found, paths, topic, hours=hours, as_json=as_json)
