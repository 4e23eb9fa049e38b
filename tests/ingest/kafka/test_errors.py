"""Kafka's error codes have Kafka's numbers."""

from __future__ import annotations

import pytest
from kafka import errors

from ingest.kafka.errors import Code

NAMES = {"NONE": "NO_ERROR", "MESSAGE_TOO_LARGE": "MESSAGE_SIZE_TOO_LARGE"}
"""Those that kafka-python calls otherwise than Kafka's protocol guide."""


def numbers() -> dict[str, int]:
    """Of kafka-python's errors, by name."""
    found = [one for one in vars(errors).values() if isinstance(one, type)]
    return {one.message: one.errno for one in found if issubclass(one, errors.BrokerResponseError)}


@pytest.mark.parametrize("code", Code)
def test_number(code: Code) -> None:
    """A code has the number by which clients know it."""
    assert numbers()[NAMES.get(code.name, code.name)] == code
