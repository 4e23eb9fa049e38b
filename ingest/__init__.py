"""From local programs into the spool: sockets, staging, and the processes of the daemon.

A message is safe from the instant recvmmsg returns it to any process, since it is received into a
staging memory that outlives them all (ingest.staging), and is appended to the log from there.
"""
