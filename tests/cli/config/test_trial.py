"""The effect of a reload: which workers are replaced, and which settings wait for a restart."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from cli.commands.config import check
from cli.config.config import Config, load_config
from cli.config.trial import FIXED, Change, compare, try_parts
from cli.terminal.errors import ConfigError

OLD = load_config(environ={"BRUCE_KAFKA_BOOTSTRAP_SERVERS": "a:1"}, uid=0)


def changed(table: str, **values: Any) -> Config:
    """OLD with other values in one table."""
    return dataclasses.replace(OLD, **{table: dataclasses.replace(getattr(OLD, table), **values)})


def test_nothing_changed() -> None:
    """The same settings from another file replace no worker."""
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
        (changed("witness", directory=Path("/w")), ["status"]),
        (dataclasses.replace(OLD, partitioners={"t": "crc32"}), ["delivery"]),
        (
            dataclasses.replace(changed("spool", sync_bytes=1 << 20), partitioners={"t": "any"}),
            ["keeper", "delivery"],
        ),
    ],
)
def test_whoever_has_the_setting_is_replaced(new: Config, roles: list[str]) -> None:
    """Only the workers that use the setting are replaced."""
    assert compare(OLD, new) == Change(new, roles, [])


@pytest.mark.parametrize(("table", "key"), FIXED)
def test_what_is_decided_at_the_start(table: str, key: str) -> None:
    """The setting stays as it was, is named, and replaces no worker; other changes take effect."""
    new = changed(table, **{key: "other"})
    assert compare(OLD, new) == Change(OLD, [], [f"[{table}] {key}"])
    both = dataclasses.replace(new, partitioners={"t": "crc32"})
    change = compare(OLD, both)
    assert (change.roles, change.kept) == (["delivery"], [f"[{table}] {key}"])
    assert change.config == dataclasses.replace(OLD, partitioners={"t": "crc32"})


def test_a_spool_too_small_for_its_segments() -> None:
    """A max_bytes that fits the configured segments, but not the existing ones, is refused."""
    small = changed("spool", segment_bytes=1 << 20, max_bytes=4 << 20)
    with pytest.raises(ConfigError, match="max_bytes"):
        compare(OLD, small)


def test_no_answer_of_kafka_where_none_waits_for_it(tmp_path: Path) -> None:
    """Refused at a start, by `config check` and by a reload, which leaves the mode as it was."""
    file = tmp_path / "bruce.toml"
    tables = '[kafka]\n"bootstrap.servers" = "a:1"\n[[input]]\nkafka = 9092\nacknowledge = "delivered"\n'
    file.write_text(f'{tables}[dispatch]\nmode = "at_most_once"\n')
    sentence = r'acknowledge = "delivered": \[dispatch\] mode = "at_most_once" waits for no answer of Kafka'
    with pytest.raises(ConfigError, match=sentence):
        try_parts(load_config(file))
    file.write_text(tables)
    new = load_config(file)
    try_parts(new)
    once = dataclasses.replace(new.dispatch, mode="at_most_once")
    running = dataclasses.replace(new, dispatch=once, ingest=dataclasses.replace(new.ingest, inputs=()))
    with pytest.raises(ConfigError, match=sentence):
        try_parts(compare(running, new).config)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ('"acks" = "0"', ['[kafka] "acks" is 0 in at_least_once: .* on the way count as delivered; leave']),
        ('"acks" = "1"', ['[kafka] "acks" is 1: .* are lost with that broker; leave']),
        ('"acks" = "all"', []),
        ('[topics."x.y"]\n"acks" = "0"', ['[topics."x.y"] "acks" is 0 in at_least_once: ']),
        (
            '"acks" = "1"\n[topics.a]\n"acks" = "0"\n[topics.b]\n"acks" = "-1"',
            ['[kafka] "acks" is 1: ', '[topics."a"] "acks" is 0 in at_least_once: '],
        ),
        ('[topics.c]\n"compression.type" = "zstd"', []),
        ('[topics.c]\n"acks" = "0"\n[dispatch]\nmode = "at_most_once"', []),
    ],
)
def test_weak_acks(tables: str, words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`config check` warns of each table whose acks give away at_least_once; the daemon would start."""
    file = tmp_path / "bruce.toml"
    file.write_text(f'[kafka]\n"bootstrap.servers" = "a:1"\n{tables}\n')
    check(config=file)
    said = capsys.readouterr()
    assert said.out == f"fine: {file}\n"
    for line, wanted in zip(said.err.splitlines(), words, strict=True):
        assert re.match(".*".join(map(re.escape, wanted.split(".*"))), line)
