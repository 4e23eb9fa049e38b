"""Single messages: found, printed, explained, followed; and the ones that were discarded.

`records` reads which messages a command is to work on, finds them, and prints them; `message` has
everything that is known of one; `discards` lists what was discarded, with samples; `trace` follows messages
through a daemon that lives.

Commands and the daemon's status worker may import this folder, and `replay` may import `records`. It imports
`status` and `terminal`.

    for batch, row in select(paths, parse_span("-2h", None), complain, fleeting=True):
        print(as_object(batch, row, values=True))
"""
