"""Memory on tmpfs that messages are received into, and where they survive a SIGKILL of the receiver.

Read `staging` first: the receive buffers of datagrams. `connection_buffer` is the memory of one stream
connection, with the protocol between the stream worker, which receives, and the ingest worker, which stores;
`connection_buffers` is the file of all of them. `messages` is the table in which both describe a burst to the
loop that stores it.

Both workers use this folder, and commands that count messages which are received and not stored. Of this
package it imports `access` and `errors`.

    staging = Staging(staging_path(directory, spool_uuid, boot_id), spool_uuid, slots_for(segment_bytes))
    waiting = read_staging(staging.path)  # [(burst, datagrams)]
"""
