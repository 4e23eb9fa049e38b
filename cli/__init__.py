"""The programs `bruce` and `brucectl`: the only package that knows all the parts, and the terminal.

Begin with `start`, where both programs begin, and `app`, which names their commands. A command is a function
in `commands/`: it parses its arguments, calls, shows and exits. The other folders have what it calls:
`daemon`, `replay`, `inspect`, `doctor`; below them `status`, what a spool and its daemon look like
now, and `config`, the configuration; and at the bottom `terminal`, for output, errors and exit codes. An
arrow points down only.

Nothing here imports Numba, LMDB or librdkafka before a command runs: `brucectl --help` does not wait. So
commands import what they need in their functions.
"""
