"""The state of a spool and its daemon, for `brucectl status` and `top` and for the status page.

Read them in this order: `snapshot` reads the spool's files and the shared state; `report` adds rates, the
backlog by topic and the room that is left, and has the lines for a pipe; `figures` looks again and again, and
turns what happens between two looks into rates; `screens` shows all of it in a terminal.

The values are classes of `status.report`, whose `as_json` makes the JSON of `status --json` and of the API.
Commands, the daemon, doctor, drain and inspect may import this folder; it imports `terminal` alone.

    report = look_once(Path("/var/lib/bruce"), None)
    report.snapshot.backlog
"""
