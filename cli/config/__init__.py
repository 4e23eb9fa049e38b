"""bruce.toml and the environment, as the options of the packages.

Read `config` first: `load_config` gives the `Config` that a daemon or a command works with. `settings` reads
the file and the variables, key by key, and writes them as text; it has the tables [ingest] and [log], too,
which belong to no other package. `kinds` has what a value may be. `trial` tries a configuration out before it
is in force, and compares two of them.

Everything in cli may import this folder; it imports `terminal` alone.

    config = load_config(Path("/etc/bruce/bruce.toml"))
    Writer(Layout(config.spool.directory), ...)
"""
