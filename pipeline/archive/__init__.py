"""An archive of spools: Parquet files by topic and day, from either engine.

job      adds what is new, and merges small files
files    what an engine writes and lists
log      commits: a job happens whole or not at all
spark    the files of Spark, at any address that Hadoop knows
iceberg  an Iceberg table in place of the log; spark_iceberg: its files, written by Spark;
         iceberg_changes: the rows that it gained, for a reader that follows it

The files that DuckDB writes are `pipeline.embedded.archive`'s, and `pipeline.embedded.iceberg`'s.
"""
