"""Every attack, by name, in the order in which they run."""

from __future__ import annotations

from tools.adversaries import floods, forging, neighbours, streams
from tools.adversaries.attack import Attack

_ALL: tuple[type[Attack], ...] = (
    forging.PlantedFrame,
    forging.PlantedFooter,
    forging.PlantedHeader,
    forging.PlantedZstd,
    forging.FakeHeads,
    floods.DistinctTopics,
    floods.DistinctShortTopics,
    floods.IllegalNames,
    floods.UnknownNames,
    floods.TinyFlood,
    floods.HugeMessages,
    floods.Malformed,
    floods.DiscardRows,
    floods.QuotaNames,
    streams.IdleConnections,
    streams.ManyUsers,
    streams.UnfinishedMessages,
    streams.SlowLoris,
    streams.TcpHalfOpen,
    neighbours.PlantedPage,
    neighbours.PlantedLink,
    neighbours.PlantedPipe,
    neighbours.PlantedFifo,
    neighbours.AckFlood,
    neighbours.StatusCrowd,
    neighbours.ClockJumps,
    neighbours.KillAll,
)
ATTACKS = {attack.name: attack for attack in _ALL}
