"""The commands of `brucectl spark`: jobs over whole spools.

`drain` has the commands that deliver, `replay` sends again, `audit` compares spools with Kafka, `archive`
writes Parquet, `stats` measures, `query` asks in SQL. `options` has what they share: the session.

`cli.app` alone imports this folder, and `inspect show` its options. The functions import from
`pipeline` once there is a session.

    with job_session(master, conf) as session:
        report = run_audit(SparkEngine(session), paths, properties, options)
"""

from __future__ import annotations

HELP = "Run a job over whole spools, on Spark."
