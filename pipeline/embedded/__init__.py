"""Jobs in this process, on DuckDB: answers in a second, without Java.

`dataset` has spools as a table that DuckDB reads column by column, and `pruning` leaves segments out;
`records` has Kafka's records. `engine` runs the jobs of `pipeline.engine` on them, with the words of PySpark
by SQLFrame (`words`). `archive` and `iceberg` keep the files of an archive, which `folder_writer` writes.
`query` answers SQL of the user's own. The rows are those of `format("bruce")`: `pipeline.source` makes them
for both engines. No module here knows Spark.

    with ask("SELECT topic, count(*) FROM spool GROUP BY topic", ["/var/lib/bruce"]) as answer:
        rows = list(answer.rows())
"""
