"""What a reload comes to: who is replaced, and what waits for a restart."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from cli.config import Config, load_config
from cli.errors import ConfigError
from cli.reloading import FIXED, Change, compare

OLD = load_config(environ={"BRUCE_KAFKA_BOOTSTRAP_SERVERS": "a:1"}, uid=0)


def changed(table: str, **values: Any) -> Config:
    """OLD with other values in one table."""
    return dataclasses.replace(OLD, **{table: dataclasses.replace(getattr(OLD, table), **values)})


def test_nothing_changed() -> None:
    """The same settings from another file replace nobody."""
    new = dataclasses.replace(OLD, file=Path("/elsewhere"), first_try=True)
    assert compare(OLD, new) == Change(new, [], [])


@pytest.mark.parametrize(
    ("new", "roles"),
    [
        (changed("spool", max_bytes=1 << 30), ["keeper"]),
        (changed("spool", sync_interval_ms=1), ["keeper"]),
        (changed("spool", quotas={b"t": 0.5}), ["keeper", "delivery"]),
        (changed("dispatch", window_messages=7), ["delivery"]),
        (changed("dispatch", engine="spark"), ["delivery"]),
        (changed("dispatch", kafka={"bootstrap.servers": "b:1"}), ["delivery"]),
        (changed("dispatch", topics={"t": {"acks": "1"}}), ["delivery"]),
        (dataclasses.replace(OLD, partitioners={"t": "crc32"}), ["delivery"]),
        (
            dataclasses.replace(changed("spool", sync_bytes=1 << 20), partitioners={"t": "any"}),
            ["keeper", "delivery"],
        ),
    ],
)
def test_whoever_has_the_setting_is_replaced(new: Config, roles: list[str]) -> None:
    """And nobody else."""
    assert compare(OLD, new) == Change(new, roles, [])


@pytest.mark.parametrize(("table", "key"), FIXED)
def test_what_is_decided_at_the_start(table: str, key: str) -> None:
    """It stays as it was, is named, and replaces nobody; what came with it takes effect."""
    new = changed(table, **{key: "other"})
    assert compare(OLD, new) == Change(OLD, [], [f"[{table}] {key}"])
    both = dataclasses.replace(new, partitioners={"t": "crc32"})
    change = compare(OLD, both)
    assert (change.roles, change.kept) == (["delivery"], [f"[{table}] {key}"])
    assert change.config == dataclasses.replace(OLD, partitioners={"t": "crc32"})


def test_a_spool_too_small_for_its_segments() -> None:
    """A max_bytes that fits the segments of the file, and not those that there are, is refused."""
    small = changed("spool", segment_bytes=1 << 20, max_bytes=4 << 20)
    with pytest.raises(ConfigError, match="max_bytes"):
        compare(OLD, small)
