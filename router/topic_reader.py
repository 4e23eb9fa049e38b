"""The log as one sees it who is to deliver some topics only."""

from __future__ import annotations

import numpy as np

from router.acks import Acks
from spool.catalogue import Catalogue
from spool.reader import Reader
from spool.record import Batch, Topics


class TopicReader(Reader):
    """A reader that leaves the messages of other topics to whoever delivers next."""

    def __init__(self, catalogue: Catalogue, topics: Topics, only: frozenset[bytes], acks: Acks) -> None:
        super().__init__(catalogue, topics)
        self._only, self._acks = [topics.add(name) for name in only], acks

    def next(self) -> Batch | None:
        """Messages from `sequence` on; those of other topics are left out in the acknowledgements."""
        batch = super().next()
        if batch is not None:
            self._acks.leave_out(batch.sequence[~np.isin(batch.topic, self._only)])
        return batch
