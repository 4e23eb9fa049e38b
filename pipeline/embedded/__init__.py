"""Jobs in this process, on DuckDB: answers in a second, without Java.

`dataset` has spools as a table that DuckDB reads column by column, and `pruning` leaves segments out; `query`
answers SQL over it and over archives. The rows are those of `format("bruce")`: `pipeline.source` makes them
for both. No module here knows Spark.

    with ask("SELECT topic, count(*) FROM spool GROUP BY topic", ["/var/lib/bruce"]) as answer:
        rows = list(answer.rows())
"""
