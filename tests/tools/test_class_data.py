"""Archives of classes: the processes that use one, and the files that belong to it.

Other tests show that a session and a broker have taken theirs: tests/pipeline/test_session.py and
tests/real_kafka/test_smoke.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools import class_data
from tools.class_data import FRUGAL


def test_without_an_archive_a_jvm_is_frugal_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options name a file only where it is: no Java has to say that it is not."""
    monkeypatch.setattr(class_data, "DIRECTORY", tmp_path)
    monkeypatch.setattr(class_data, "jars_directory", lambda: tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: __file__)
    archive = class_data.kafka_archive()
    assert archive is not None
    assert class_data.frugal_environ()["KAFKA_JVM_PERFORMANCE_OPTS"] == FRUGAL
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in class_data.frugal_environ()["KAFKA_JVM_PERFORMANCE_OPTS"]


def test_other_jars_want_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does one that has changed."""
    monkeypatch.setattr(class_data, "jars_directory", lambda: tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: __file__)
    found = [class_data.kafka_archive()]
    for size in (1, 2):
        (tmp_path / "a.jar").write_bytes(bytes(size))
        found.append(class_data.kafka_archive())
    assert len(set(found)) == 3
