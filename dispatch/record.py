"""Single records to librdkafka, beside the messages of the log: one call from Python each."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from dispatch.librdkafka import COPY_MESSAGE, Library, Vtype
from dispatch.reports import UNLISTED
from spool.kernel import address_of

_WORDS = 9
"""sizeof(rd_kafka_vu_t) / 8: the kind, then a union."""

Argument = tuple[int, ...]
"""A Vtype, then the first words of its union."""


def produce(library: Library, handle: int, topic: int, partition: int, key: bytes, value: bytes) -> int:
    """Hand over one record; librdkafka's error code, 0 when taken. Its report is passed over.

    `topic`: rd_kafka_topic_t.
    """
    arguments = [
        (Vtype.RKT, topic),
        (Vtype.PARTITION, partition),
        (Vtype.MSGFLAGS, COPY_MESSAGE),
        (Vtype.KEY, *place(key)),
        (Vtype.VALUE, *place(value)),
        (Vtype.OPAQUE, UNLISTED),
    ]
    return hand_over(library, handle, arguments)


def hand_over(library: Library, handle: int, arguments: Sequence[Argument]) -> int:
    """Call `produceva`; librdkafka's error code, 0 when taken. Keep alive what they point to."""
    table = np.zeros((len(arguments), _WORDS), np.int64)
    for row, words in enumerate(arguments):
        table[row, : len(words)] = words
    error: int | None = library.produceva(handle, address_of(table), len(table))
    if not error:
        return 0
    code = int(library.error_code(error))
    library.error_destroy(error)
    return code


def place(data: bytes) -> tuple[int, int]:
    """(address, length) of the bytes of an object, for as long as it lives."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0, len(data)
