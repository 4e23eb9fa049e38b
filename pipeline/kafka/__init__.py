"""`format("bruce-kafka")`: the records of Kafka as rows, and rows into Kafka, without Spark's own connector.

Read `source` first, which Spark calls, then `writer` (on the executors: rows that a user's own job sends,
also in transactions). `reader` plans on the driver which offsets to read, and reads by Spark's connector if
the session has it; for users of that connector it makes and reads the header `bruce-id`. `audit` may import
this folder.

    spark.read.format("bruce-kafka").option("topics", "clicks").option("bootstrap.servers", ...).load()
"""
