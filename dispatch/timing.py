"""The times of dispatch, in seconds unless a name says otherwise; those that a user may set are in `options`.

A test hands its own over as an argument, or moves the clock.
"""

from __future__ import annotations

# -- librdkafka -------------------------------------------------------------------------------------------

STALL_NS = 200_000_000
"""A broker with messages in flight that reports none for so long is stalled."""
HURRY_MS = 1
"""So long librdkafka does not linger: its threads wake in less."""
HURRY_ENDS_S = 1.0
"""How long its thread is waited for at the end."""
QUIET_S = 600.0
"""Between two lines of librdkafka's log for the same cause."""
SETTINGS_SLACK_S = 0.5
"""For librdkafka to say that the time for an answer about topics' settings is over."""
CONSUMER_ANSWER_S = 15.0
"""For each question of a consumer to the brokers, at most."""
CONSUMER_POLL_S = 1.0
"""Longest wait of a consumer for the next records."""

# -- transactions -----------------------------------------------------------------------------------------

COMMIT_S = 0.1
"""Between the first message of a transaction and its end."""
STUCK_S = 10.0
"""A transaction whose messages are not all reported by then is given up: a broker does not answer."""
LEAVE_S = 5.0
"""How long a broker that did not answer is left alone; twice as long each time, up to LEAVE_MOST_S."""
LEAVE_MOST_S = 60.0
DOWN_S = 1.0
"""How long one without a connection is."""
INIT_S = 5.0
"""One attempt to fence; it is resumed by the next."""
RETRY_S = 1.0
"""Before a step that failed is tried again."""
GRACE_S = 2.0
"""A process that has taken the name over says so by then."""
FOLLOW_S = 2.0
"""Between two looks at the other process."""
KEEP_S = 10.0
"""Between two signs of life of a task."""
STILL_S = 120.0
"""A task that has said nothing for so long, in a topic that can be read, is dead."""
PROGRESS_ANSWER_S = 10.0
"""How long one answer of a broker about the progress topic is waited for."""
PROGRESS_READ_S = 120.0
"""How long reading it may take: transactions of others that are open hide records of ours behind them, until
they end or time out."""
