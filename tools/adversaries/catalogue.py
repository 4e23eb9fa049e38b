"""Every attack, by name, in the order in which they run."""

from __future__ import annotations

from tools.adversaries import floods, forging, insider, killing, neighbours, operations, streams
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
    floods.IllegalNamesDeadLetters,
    floods.UnknownNames,
    floods.MadeTopics,
    floods.RefusedRecords,
    floods.TinyFlood,
    floods.HugeMessages,
    floods.Malformed,
    floods.DiscardRows,
    floods.QuotaNames,
    streams.IdleConnections,
    streams.BusyConnections,
    streams.ManyUsers,
    streams.UnfinishedMessages,
    streams.SlowLoris,
    streams.TcpHalfOpen,
    streams.StreamHeaders,
    streams.ConnectionChurn,
    streams.TcpChurn,
    neighbours.PlantedPage,
    neighbours.PlantedLink,
    neighbours.PlantedPipe,
    neighbours.PlantedStaging,
    neighbours.SquattedDirectory,
    neighbours.PlantedFifo,
    neighbours.AckFlood,
    neighbours.StatusCrowd,
    neighbours.ClockJumps,
    neighbours.KillAll,
    killing.KillHeld,
    killing.KillUnheld,
    insider.GroupReader,
    insider.LockFiles,
    operations.PackedBomb,
    operations.RaisingPartitioner,
    operations.KilledReplay,
    operations.WallClock,
)
ATTACKS = {attack.name: attack for attack in _ALL}
