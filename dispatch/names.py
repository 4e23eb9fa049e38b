"""The names under which a spool's messages are delivered in transactions; its records have them as keys."""

from __future__ import annotations


def transactional_id(spool_uuid: bytes) -> str:
    """That of the daemon; those of jobs begin with it."""
    return f"bruce-{spool_uuid.hex()}"


def lane_id(spool_uuid: bytes, partition: int) -> str:
    """That of the job's task which delivers what goes to partitions of this number."""
    return f"{transactional_id(spool_uuid)}-{partition}"


def replay_id(replay: str) -> str:
    """That of one replay, which goes on under it when it was interrupted."""
    return f"bruce-replay-{replay}"
