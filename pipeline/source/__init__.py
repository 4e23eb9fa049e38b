"""`format("bruce")`: the messages that spools store, as rows.

Read `fields` (the columns), `plan` (on the driver: which segments to read, and how far), `segments` and
`columns` (on the executors: frames to Arrow), `reader`, then `source`, which Spark calls, with its `options`.
`pushdown` leaves segments out, `groups` puts small ones together, `offsets` follows a spool that grows,
`remote` reads copies in object stores, `content_hash` tells messages and records apart, `archived` reads
archives, and `outcomes` has the outcome of each message from the marks.
Executors import neither `plan` nor `outcomes`: these two open LMDB. All other folders of pipeline may import
this one.

    spark.read.format("bruce").load("/var/lib/bruce").where("topic = 'orders'")
"""
