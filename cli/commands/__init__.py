"""One module per command, or per group of commands: parse, call, show, exit."""
