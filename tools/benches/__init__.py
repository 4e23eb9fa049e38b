"""What tools/bench measures, each bench in a module of its own.

    intake      datagrams taken in, against a C loop that throws them away
    drain       a backlog delivered, against librdkafka in C
    endtoend    from datagram to acknowledgement on two cores: does the backlog grow?
    latency     from the datagram sent to its arrival at a consumer
    start       from starting bruce to its taking in, with a backlog of gigabytes
    successor   from a SIGKILL to a successor that takes in
    memory      private memory of each process
    stall       senders while the disk stands still
    adversarial the worst contents of a segment, beside an ordinary one

A bench has `add_options(parser)` and `measure(bench, options)`, which yields `report.Figure`s. Nothing here
asserts: a figure that is missed is shown as missed.
"""
