"""Kafka clients that we did not write, each into the Kafka input of a bruce, through trouble.

A folder for each client has a small program. All have one command line:

    PROGRAM BOOTSTRAP TOPIC FIRST COUNT ACKED_FILE [PER_SECOND]

It produces the values FIRST to FIRST+COUNT-1 as decimal text, with the key `number % 10` and a header `n`
that is the number, with the client's default settings, idempotent, with acks of all, in small batches; it
tries again for some 180 s. ACKED_FILE gets a line `number partition offset` for each record that is
acknowledged, with -1 where the client does not say, and `number failed REASON` for one that failed.
PER_SECOND has it go slower.

kcat, rsyslog and syslog-ng write no headers of single records, and note all acknowledgements at their end.
kafkajs and @platformatic/kafka have one call on its way at a time: they count the sequences of idempotent
producers so that several calls at a time lose records when a connection breaks, with any broker.

`clients` builds and starts them; `trial` has the troubles, and judges.
"""
