"""Shared by all commands: their output, errors and exit codes, and how a program begins and ends.

`errors` has what a command refuses by itself, and the exit code of every error. `program` builds the commands
and runs one of them. `output` writes tables, columns and JSON, `progress` shows how far long work is.
`clashes` finds packages of other people that hide ours, before anything of ours is imported.

Everything in cli may import this folder; it imports nothing of cli. `output` and `program` import Rich only
when there is a terminal.

    show_rows(("topic", "messages"), [("clicks", 17)])
    raise typer.Exit(errors.FOUND)
"""
