"""From the spool to the brokers: which partition, when, and what became of it.

The router reads committed messages in order, chooses a partition for each, hands them to dispatch, and
writes down what was acknowledged. It holds no queue: what cannot go now is read from the log again later.
"""
