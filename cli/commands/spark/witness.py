"""`brucectl spark witness`: the witness of a fleet, on a cluster."""

from __future__ import annotations

from cli.commands.arguments import ConfigFile, examples
from cli.commands.jobs import Spools, demand, going_on, kafka_properties, spool_paths, stop_signals
from cli.commands.spark.options import Conf, Master, job_session, name_page
from cli.commands.witness import Late, directory_of

EXAMPLES = examples(
    "brucectl spark witness '/mnt/fleet/*/bruce' --config /etc/bruce/bruce.toml",
    "brucectl spark witness '/mnt/fleet/*/bruce' --late 300 --master spark://boss:7077",
)


def witness(
    spools: Spools = None,
    *,
    late: Late = 60.0,
    master: Master = None,
    conf: Conf = None,
    config: ConfigFile = None,
) -> None:
    """Watch Kafka for what is missing, on Spark: brucectl witness run, for more than one process can read.

    Executors read the configured cluster and hash its records, in one streaming query; this process keeps
    what was seen, at 40 bytes a record, and judges. Directory, document, metrics and `brucectl audit
    --witness` are those of brucectl-witness(1) with the one tier `kafka`, and either goes on with what
    the other has written. It may be killed and started again at any time, and each record counts once.

    Until SIGTERM or SIGINT. Needs Java 17, and bruce-spool[witness] beside bruce-spool[spark]; executors need
    what they need for other jobs.
    """
    from cli.config.config import load_config

    settings = load_config(config)
    directory, properties = directory_of(settings), kafka_properties(settings, None)
    demand("pyroaring", extra="witness")
    with job_session(master, conf, bar=False) as session:
        from pipeline.spark_witness import SparkPlace
        from pipeline.witness.kafka_tier import TIER, Place
        from pipeline.witness.run import watch

        name_page(session)
        stop = stop_signals()
        places = {TIER: SparkPlace(Place(properties), session, stop)}
        with going_on("watching what is delivered"):
            watch(directory, spool_paths(spools, settings), places, stop, late_s=late)
