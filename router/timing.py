"""The times of the router, all in seconds; those that a user may set are in `dispatch.options`.

A test hands its own over as an argument, or moves the clock.
"""

from __future__ import annotations

# -- the loop ---------------------------------------------------------------------------------------------

IDLE_S = 0.05
"""Longest sleep while there is something to commit or to wait for."""
OBSERVE_S = 0.1
"""Between two looks at the states of brokers, at outages, and at unreadable ranges."""
COMMIT_S = 0.1
"""Between two writes of the marks, while many messages are resolved, or a client waits until some are."""
FEW_COMMIT_S = 0.5
"""The same while few are resolved, and no client waits."""
WRITTEN_S = 0.2
"""From the beginning of such a write to the look whether it is done."""
FLUSH_S = 5.0
"""At the end, how long acknowledgements of what is in flight are waited for; the rest stays in the spool."""
RECALL_S = 5.0
"""How long an eviction waits for the reports of what is in flight."""

# -- errors -----------------------------------------------------------------------------------------------

DECLINED_S = 0.05
"""Before a partition is tried again that librdkafka's own queue had no room for."""
PAUSE_S = 0.5
"""Before another try, after an error that time may heal."""
STOP_S = 5.0
"""Before another try, after an error that only people can mend."""
FIRST_REBUILD_S = 0.1
"""Before another new producer, when the last one delivered nothing; it doubles each time."""
LONGEST_REBUILD_S = 30.0
"""The longest of these pauses."""
OUTAGE_S = 5.0
"""A broker that was away for less was not away."""

# -- rates ------------------------------------------------------------------------------------------------

WORTHWHILE_S = 0.5
"""A pass of the catch-up reads a chunk of the log at least: it begins when a rate lets so much of it go."""
BACKLOG_DELAY_S = 10.0
"""After an outage the backlog waits for so long, at most."""
BACKLOG_DRAW_S = 1.0
"""Between two changes of the rate of the backlog."""

# -- metadata ---------------------------------------------------------------------------------------------

REFRESH_S = 10.0
"""Between two looks at the metadata without a request."""
METADATA_RETRY_S = 0.25
"""After an answer, or none, before Kafka is asked again, at least."""
METADATA_ANSWER_S = 2.0
"""How long an answer is waited for. Short: each try asks another broker, and a frozen one never answers."""
ASK_LEADERS_S = 1.0
"""Between two questions for the leaders of partitions that are held because theirs is away."""
ASK_NAMES_S = 1.0
"""Between two questions for many unknown topics."""
FORGET_S = 60.0
"""So long after the grace time of a topic its messages are discarded at once, and Kafka is not asked."""
FORGET_EVERY_S = 10.0
"""Between two looks for names to forget."""
LIST_S = 10.0
"""How old the list of Kafka's topics may be, by which strangers are told from others."""
LIST_ANSWER_S = 5.0
"""How long that list is waited for."""
LATENESS_S = 600.0
"""Between two questions for the settings of a topic."""
SHRINK_S = 30.0
"""So long all answers must agree that a topic has fewer partitions: a broker may lag behind one that grew."""

# -- what the log and the status say ----------------------------------------------------------------------

QUIET_S = 60.0
"""Between two lines of the log about the same error of Kafka's or of a partitioner, a trouble for so long."""
DISCARD_LINES_S = 10.0
"""Between two lines about discards for the same reason and topic, which then count all in between."""
PATIENCE_S = 5.0
"""So long a broker, or the dead-letter topic, may be missing before that is called a trouble."""
FRESH_S = 60.0
"""So long an error is a trouble: librdkafka repeats one of a broker every 30 s at least."""
SLACK_S = 2.0
"""Statistics come every second: what was said shortly before they called a broker connected may be newer."""
LONGEST_TRACE_S = 3600.0
"""A trace that is not ended is over by then."""
