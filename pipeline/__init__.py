"""The log as data, on Spark: DataFrames over committed frames, and what was found in Kafka beside them.

    spool directories -> plan -> source (reader, segments, columns) ─┐
                                                                     ├─► audit -> runner -> a Report
    Kafka             ->         kafka_source                       ─┘

`plan` runs beside the spool, on the driver, and alone reads the index; executors need the bytes of the
segments and nothing else. `places` and `stream` are the same source, followed. A job is a function of
DataFrames, and `runner` is what joins it to the world.
"""
