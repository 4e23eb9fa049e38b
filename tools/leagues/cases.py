"""The cases of the league. Each begins with a peer that has delivered its first messages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tools.leagues.match import FULL_SPEED, Match
from tools.soaks.balloon import Balloon

FLOW_RATE = 5_000
DOWN_S = 0.3
HANG_S = 5.0
TAKEN_S = 1.0
"""For a peer to take what is in the queue of its socket, which not every peer can keep."""
FULL_S = 8.0
"""The disk is full for so long, or until most messages are accepted."""
LARGE_BYTES = 4_000
SHARES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Case:
    """A trouble, and what it does to a match."""

    text: str
    script: Callable[[Match], None]
    small: bool = False
    """On a small disk, with large messages."""


def kill(match: Match) -> None:
    """Three kills of all processes while messages flow."""
    left = match.count - match.accepted
    with match.sending(FLOW_RATE) as sender:
        for share in SHARES:
            match.wait_for(sender, share, left)
            match.peer.kill()
            time.sleep(DOWN_S)
            match.peer.start()


def away(match: Match) -> None:
    """Kafka ends; all messages are accepted; everything is killed; Kafka comes back."""
    match.kafka.stop_all()
    match.send()
    time.sleep(TAKEN_S)
    match.peer.kill()
    match.peer.start()
    match.kafka.start_all()


def hang(match: Match) -> None:
    """All brokers freeze; all messages are accepted; everything is killed; the brokers go on."""
    for broker in range(1, match.kafka.size + 1):
        match.kafka.freeze(broker)
    try:
        match.send()
        time.sleep(HANG_S)
        match.peer.kill()
        match.peer.start()
        time.sleep(HANG_S)
    finally:
        match.kafka.start_all()


def disk(match: Match) -> None:
    """Kafka ends; another program fills the disk; messages come; the disk is freed; Kafka comes back."""
    match.kafka.stop_all()
    left = match.count - match.accepted
    with contextlib.ExitStack() as full:
        full.enter_context(Balloon(match.peer.setting.disk / "balloon"))
        time.sleep(TAKEN_S)
        with match.sending(FLOW_RATE) as sender:
            match.wait_for(sender, 0.6, left, FULL_S)
            full.close()
    match.kafka.start_all()


def topic(match: Match) -> None:
    """Half of the messages are for a topic that Kafka does not have."""
    half = match.count // 2
    with (
        match.sending(FULL_SPEED, count=half - match.accepted),
        match.sending(FULL_SPEED, count=half, topic=match.peer.setting.other),
    ):
        pass


def restart(match: Match) -> None:
    """Three clean stops while messages flow."""
    left = match.count - match.accepted
    with match.sending(FLOW_RATE) as sender:
        for share in SHARES:
            match.wait_for(sender, share, left)
            match.peer.stop()
            match.peer.start()


CASES: Mapping[str, Case] = {
    "kill": Case("three SIGKILLs of all processes in flow", kill),
    "away": Case("Kafka away, all accepted, SIGKILL, Kafka back", away),
    "hang": Case("Kafka hangs, all accepted, SIGKILL, Kafka goes on", hang),
    "disk": Case("Kafka away, the disk full, then not", disk, small=True),
    "topic": Case("half of the messages for an unknown topic", topic),
    "restart": Case("three restarts in flow", restart),
}
