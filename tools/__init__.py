"""The programs that developers run: each command is a thin script over a module beside it."""
