"""The status worker's HTTP server, and the figures that it and the commands show, as plain values.

Read `report` and `figures` first: they are the shapes of `brucectl status --json` and of the API. `health`
decides when a spool is called unhealthy. `access` (token, TLS) waits for the first client; then `web`, which
loads Tornado, serves the page and all paths, with `clients` (limits of connections), `metrics` (Prometheus)
and `dory` (its old paths). `witness` reads the document of `brucectl witness run`.

`cli` fills the figures and starts the server. This package imports nothing of ingest, router and dispatch,
and of spool only `histogram`, `words` and `disk`.

    listener = await_client(options, beat)
    Server(open_access(options), source).run(listener, END, beat)
"""
