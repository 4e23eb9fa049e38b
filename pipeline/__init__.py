"""The log as data, on Spark: DataFrames over committed frames, and what was found in Kafka beside them.

    source     spools as rows: format("bruce")       archive    rows as Parquet files, each once
    delivery   rows into Kafka, as the daemon would  kafka      Kafka as rows and back: format("bruce-kafka")
    audit      spools against Kafka                  stats      SQL, statistics

Read `source` first. Each imports only those before it in this order: source, archive, delivery, kafka, then
`audit`, `audit_report` (the document that users read), `audit_job`, `stats` and `session` (a Spark session
that knows our formats; `worker_daemon` forks its workers). Below all are `errors`, `job` (our code in Spark's
Python workers, and the error of a failed job as one sentence) and `spark_release` (what the installed Spark
can do and needs). The driver plans beside the spools and alone opens their index; executors need the bytes of
the segments and nothing else.

    spark.read.format("bruce").load("/var/lib/bruce")
"""
