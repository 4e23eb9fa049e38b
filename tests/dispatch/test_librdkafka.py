"""The library is found, checked, and starts nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch import librdkafka
from dispatch.errors import NoLibrary

ROOT = Path(__file__).parents[2]


def test_it_is_the_copy_that_confluent_kafka_carries() -> None:
    """The path is the wheel's, and is loaded once."""
    library = librdkafka.load()
    assert "confluent_kafka.libs" in library.path
    assert librdkafka.load() is library


def test_an_unknown_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Structures of another version may differ, so it is not used."""
    monkeypatch.setattr(librdkafka, "OLDEST", (2, 99, 0))
    with pytest.raises(NoLibrary, match=r"librdkafka 2\.\d+\.\d+"):
        librdkafka.load.__wrapped__()


def test_loading_starts_no_thread() -> None:
    """A process that only loads it can still be forked."""
    code = (
        "import os; from dispatch.librdkafka import load; load(); print(len(os.listdir('/proc/self/task')))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert run.stdout.count(",") == 0


def test_a_function_that_is_not_declared_is_named() -> None:
    """A call without a signature would cut pointers to 32 bits."""
    with pytest.raises(AttributeError, match="rd_kafka_conf_dump"):
        librdkafka.load().conf_dump()
