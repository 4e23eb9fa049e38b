"""The fleet: spools of many hosts that Spark delivers while its executors die, and the checks afterwards.

options    how large
frames     bursts of messages, made in place by compiled loops
spools     spools that are full of them, packed and damaged if the options say so
kafka      topics, and the ends of Kafka's partitions
jobs       `brucectl spark` in a process of its own, and the executors below it
evidence   that of tools.storms
records    the messages recorded as delivered when a process died
judgement  the verdict on the records in Kafka
fleet      from beginning to end
"""
