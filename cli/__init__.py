"""The programs `bruce` and `brucectl`: the only place that knows all the parts, and the terminal.

A command parses its arguments, calls, shows and exits; its file is in `cli/commands/`. `config` reads
bruce.toml into the options of the packages, `exits` turns errors into exit codes, `output` writes.

Nothing here imports Numba, LMDB or librdkafka before a command runs: `brucectl --help` does not wait.
"""
