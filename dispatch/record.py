"""A single record to librdkafka, beside the messages of the log: one call from Python each."""

from __future__ import annotations

import ctypes

import numpy as np

from dispatch.librdkafka import COPY_MESSAGE, Library, Vtype
from dispatch.reports import UNLISTED
from spool.kernel import address_of

_WORDS = 9
"""sizeof(rd_kafka_vu_t) / 8: the kind, then a union."""


def produce(library: Library, handle: int, topic: int, partition: int, key: bytes, value: bytes) -> int:
    """Hand over one record; librdkafka's error code, 0 when taken. Its report is passed over.

    `topic`: rd_kafka_topic_t.
    """
    key_at, value_at = ctypes.create_string_buffer(key), ctypes.create_string_buffer(value)
    arguments = np.zeros((6, _WORDS), np.int64)
    rows = (
        (Vtype.RKT, topic),
        (Vtype.PARTITION, partition),
        (Vtype.MSGFLAGS, COPY_MESSAGE),
        (Vtype.KEY, ctypes.addressof(key_at), len(key)),
        (Vtype.VALUE, ctypes.addressof(value_at), len(value)),
        (Vtype.OPAQUE, UNLISTED),
    )
    for row, words in enumerate(rows):
        arguments[row, : len(words)] = words
    error: int | None = library.produceva(handle, address_of(arguments), len(rows))
    if not error:
        return 0
    code = int(library.error_code(error))
    library.error_destroy(error)
    return code
