"""Which messages are resolved: delivered, or discarded for a reason. One process owns `delivery/` at a time.

    marks           the table of resolved messages, in LMDB, always synced
    discarded       counts, samples and single bits of discarded messages, in the same table
    outcomes        outcomes of single messages, for a reader that polls; files that are not imported yet
    outcome_file    the outcomes of a job's task, for the owner of the marks to import
    task_files      how many partitions topics had when a job began; its names for transactions
    lease           how a job requests delivery, and how the owner lends it
    discard_file    discarded messages as they were received, for sending them again

Read `marks`, then `lease` and `outcome_file`. Imports from `index`, `shared` and below.

    marks = Marks(layout.delivery, SegmentList(layout))
    marks.commit(Changes(low_watermark=sequence))
"""
