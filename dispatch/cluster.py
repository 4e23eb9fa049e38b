"""One picture of a Kafka cluster's metadata, as it was when it was fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Cluster:
    """Brokers, and who leads which partition."""

    brokers: Mapping[int, str] = field(default_factory=dict)
    """Broker id -> "host:port"."""
    topics: Mapping[bytes, npt.NDArray[np.int32]] = field(default_factory=dict)
    """Topic -> broker id of the leader by partition id; NO_LEADER where there is none.

    Topics that the cluster named together with an error are in `errors` alone.
    """
    errors: Mapping[bytes, int] = field(default_factory=dict)
    """Topic -> Kafka's error code, such as UNKNOWN_TOPIC_OR_PART."""

    def is_like(self, other: Cluster) -> bool:
        """Whether both say the same."""
        return (self.brokers, self.errors, self.topics.keys()) == (
            other.brokers,
            other.errors,
            other.topics.keys(),
        ) and all(np.array_equal(leaders, other.topics[name]) for name, leaders in self.topics.items())
