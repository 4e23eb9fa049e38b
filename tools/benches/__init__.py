"""The benches of tools/bench, each in a module of its own.

    intake      datagrams taken in, against a C loop that throws them away
    drain       a backlog delivered, against librdkafka in C
    backlog     a backlog larger than memory, delivered in a control group
    endtoend    from datagram to acknowledgement on two cores, against a C program without a disk
    latency     from the datagram sent to its arrival at a consumer
    day         few messages a second: CPU, wake-ups, memory and latency, beside syslog daemons
    start       from starting bruce to its first intake, with a backlog of gigabytes
    successor   from a SIGKILL to the first intake of the successor
    memory      private memory of each process
    stall       senders while the disk stalls
    adversarial the worst contents of a segment, beside an ordinary one

A bench has `add_options(parser)` and `measure(bench, options)`, which yields `report.Figure`s. Nothing here
asserts: a missed figure is shown as missed.
"""
