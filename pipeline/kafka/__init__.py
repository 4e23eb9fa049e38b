"""`format("bruce-kafka")`: the records of Kafka as rows, and rows into Kafka, without Spark's own connector.

Read `ranges` (which offsets to read), `ends` (what Kafka has dropped or withholds) and `records` (them as
Arrow batches), which know no Spark; then `source`, which Spark calls, and `writer` (on the executors: rows
that a user's own job sends, also in transactions). `reader` reads by Spark's connector if the session has it;
for users of that connector it makes and reads the header `bruce-id`. `stamps` is a stream for the witness.

    spark.read.format("bruce-kafka").option("topics", "clicks").option("bootstrap.servers", ...).load()
"""
