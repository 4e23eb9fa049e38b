"""Reading a log that another process may be writing: messages in order, counts, single messages.

    reader      committed messages as batches, in order, across segments, over damage
    selection   a part of the log, by sequence, time, topic; and how many of a set are not resolved
    files       segment files one by one, without index and marks; one message
    patterns    bytes and regular expressions that keys and values are searched for
    backlog     undelivered messages by topic, and the oldest of them
    overview    the segments at a glance; messages and bytes over time; totals

Read `reader`, then `overview`. Imports from `marks` and below; delivery, brucectl and Spark import from here.

    selection = Selection(SegmentList(layout), Topics(), Span(first=1000))
    while batch := selection.next():
        print(batch.sequence)
"""
