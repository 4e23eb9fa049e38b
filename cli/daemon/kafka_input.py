"""The daemon's Kafka worker put together; imported in that process alone."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

from ingest.buffers.connection_buffers import ConnectionBuffers
from ingest.kafka.clients import Options
from ingest.kafka.kafka_worker import KafkaWorker
from ingest.kafka.producers import Producers, producers_path
from ingest.kafka.topics import Topics
from ingest.sockets.inputs import DELIVERED, Input
from spool.log.recovery import OpenSpool
from spool.shared.state import SharedState


def make_worker(
    inputs: Mapping[socket.socket, Input],
    lanes: ConnectionBuffers,
    staging: Path,
    spool: OpenSpool,
    shared: SharedState,
    *,
    page: Path,
    bells: tuple[int, int, int],
    kept: Collection[int],
) -> KafkaWorker:
    """The worker for these listeners. `page`: the path of the shared state.

    `bells`: eventfds: of what is committed, the deliverer's, the keeper's. Raises BadStaging, OSError.
    """
    committed, deliverer, keeper = bells
    options = {
        sock: Options(one.allow_unknown, waits_for_delivery=one.acknowledge == DELIVERED)
        for sock, one in inputs.items()
    }
    return KafkaWorker(
        options,
        lanes,
        Producers(producers_path(staging), spool.identity.spool),
        spool.layout,
        shared,
        Topics(spool.layout, shared, page, bell=deliverer),
        bell=committed,
        keeper_bell=keeper,
        kept=kept,
        cluster=str(uuid.UUID(bytes=spool.identity.spool)),
    )
