"""The pool of each delivery mode."""

from __future__ import annotations

import os

from dispatch.client import KafkaClient
from dispatch.exactly_once import Book, ExactlyOnce
from dispatch.names import transactional_id
from dispatch.options import DispatchOptions
from dispatch.pool import Pool
from spool.record import Topics


def make_pool(
    options: DispatchOptions, topics: Topics, book: Book, spool_uuid: bytes, wake_fd: int, name: str = ""
) -> tuple[KafkaClient, Pool]:
    """A client and its pool. `wake_fd`: an eventfd that is written to when there is something to collect.

    `name`: the id of its transactions; else the spool's. Raises BadProperty and DispatchError.
    """
    if options.mode != "exactly_once":
        client = KafkaClient(options, wake_fd)
        return client, Pool(client, topics, options, spool_uuid=spool_uuid)
    client = KafkaClient(options, wake_fd, transactional_id=name or transactional_id(spool_uuid))

    def wake() -> None:
        os.eventfd_write(wake_fd, 1)

    return client, ExactlyOnce(client, topics, options, book, spool_uuid=spool_uuid, wake=wake)
