"""The fleet: spools of many hosts that Spark delivers while its executors die, and what must be so behind it.

options    how large
frames     bursts of messages, made in place by compiled loops
spools     spools that are full of them, packed and damaged where that was asked for
kafka      where Kafka's partitions end, and topics
jobs       `brucectl spark` in a process of its own, and the executors below it
evidence   is that of tools.storms
records    what was written down as delivered when somebody died
judgement  the verdict on what Kafka has
fleet      from beginning to end
"""
