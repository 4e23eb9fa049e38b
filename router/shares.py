"""What keeps a flood of one topic from the others' way.

There is one log, and it is read in order: behind a hundred thousand messages of a topic in flood stands one
of another. So when a broker that moves has no room, and there is more to read, the topics that have most in
flight there are *set aside*: their partitions are held from where the live path is, which goes on to what
lies behind without waiting for room. What is held is caught up, the topics in turn, and rejoins the live path
where it meets it. The price is that such a topic's messages are read twice, but for segments that hold
nothing else: by their footers the live path passes them over. So a topic that is alone pays next to nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dispatch.brokers import State
from dispatch.pool import Pool
from router.room import Mask

BEHIND_BYTES = 1 << 20
"""Nothing is set aside while the live path is nearer to the end of the log: that much is soon read."""


def floods(pool: Pool, roomy: Mask, free: Mask) -> npt.NDArray[np.int32]:
    """Numbers of the topics that are to be set aside, of those with partitions that are `free`.

    Of each healthy broker without room: those with no less in flight there than it would be if all with
    anything in flight there had the same. `roomy` bool by broker index, `free` bool by flat number.
    """
    rows, brokers = pool.partitions.rows[: len(free)], pool.brokers.rows
    full = ~roomy & (brokers["state"] == State.HEALTHY)
    there = rows[(rows["leader"] >= 0) & (rows["messages"] > 0)]
    there = there[full[there["leader"]]]
    if len(there) == 0:
        return np.zeros(0, np.int32)
    topics = int(there["topic"].max()) + 1
    shares = np.zeros((len(brokers), topics))
    # What counts is the share of what the broker has, in messages and in bytes.
    for load in ("messages", "bytes"):
        share = there[load] / np.maximum(brokers[load][there["leader"]], 1)
        np.add.at(shares, (there["leader"], there["topic"]), share)
    fair = shares.sum(axis=1) / np.maximum((shares > 0).sum(axis=1), 1)
    flooding = ((shares > 0) & (shares >= 0.999 * fair[:, np.newaxis])).any(axis=0)
    return np.intersect1d(np.flatnonzero(flooding), rows["topic"][free]).astype(np.int32)
