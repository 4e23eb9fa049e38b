"""The programs `bruce` and `brucectl`: the only package that knows all the parts, and the terminal.

Begin with `start`, where both programs begin, and `app`, which names their commands. A command is a function
in `commands/`: it parses its arguments, calls, shows and exits. It calls `daemon`, `replay`, `inspect` and
`doctor`; below them are `status`, the state of a spool and its daemon, and `config`; at the bottom
`terminal`, for output, errors and exit codes. cli imports every package, and none imports cli. `brucectl
--help` waits for neither Numba, LMDB nor librdkafka: commands import what they need in their functions.

    from cli.status.snapshot import take_snapshot
    backlog = take_snapshot(directory).backlog
"""
