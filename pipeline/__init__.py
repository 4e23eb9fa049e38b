"""The log as data: tables of committed messages, and of what Kafka has, for jobs on Spark and on DuckDB.

    source     spools as rows: format("bruce")       delivery   rows into Kafka, as the daemon would
    kafka      Kafka as rows: format("bruce-kafka")  engine     one definition of each job, two engines
    audit      spools against Kafka                  archive    rows as files or in a table, each once
    stats      rates, sizes, the skew of keys        embedded   the jobs on DuckDB, in this process

Read `source` first. Each imports only those before it in this order: source, delivery, kafka, engine, then
`audit`, `audit_report` (the document that users read), `audit_job`, `archive`, `stats` and `discard_hours`.
On top are the engines: `spark_engine` with `session` (a Spark session that knows our formats;
`worker_daemon` forks its workers, `class_data` has it start soon), `spark_query` and `spark_witness`, and
`embedded`. Below all are `errors`, `computed` (columns that our code makes), `job` (our code in Spark's
Python workers, and the error of a failed job as one sentence) and `spark_release` (what the installed Spark
can do and needs). The driver plans beside the spools and alone opens their index; executors need the bytes of
the segments and nothing else.

    spark.read.format("bruce").load("/var/lib/bruce")
"""
