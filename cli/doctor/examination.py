"""All checks of the doctor, one after the other; those of bruce.toml; and what the spool tells a planner."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from cli.config.config import Config, given_settings, load_config
from cli.config.settings import is_secret
from cli.config.trial import ACKS_REMEDY, try_parts, weak_acks
from cli.doctor import Finding, Level, disk, host, kafka, spools, witness
from cli.doctor.plan import HOUR_S, Plan, make_plan
from cli.terminal.errors import KNOWN
from dispatch.options import SPARK
from spool.errors import SpoolError
from spool.layout import Layout
from spool.read.files import Span
from spool.read.overview import Overview, State, overview, segment_paths, timeline

NAME = "configuration"
_MOST_STEPS = 3600
"""Of the segment in use."""


def load(named: Path | None) -> tuple[Config | None, list[Finding]]:
    """The configuration, None when it cannot be used, and what is found about it."""
    try:
        config = load_config(named)
        try_parts(config)
    except KNOWN as error:
        return None, [
            Finding(NAME, Level.PROBLEM, str(error), "correct it, and try it with brucectl config check")
        ]
    return config, [check_source(config), *check_delivery(config), *check_secrets(config, named)]


def check_source(config: Config) -> Finding:
    """The places that settings come from."""
    if config.first_try:
        return Finding(
            NAME,
            Level.ADVICE,
            "nothing says where Kafka is: bruce starts an embedded one, which forgets everything at its end",
            'name brokers in [kafka] "bootstrap.servers" of /etc/bruce/bruce.toml',
        )
    return Finding(NAME, Level.OK, f"the daemon can start with {config.file or 'the environment'}")


def check_delivery(config: Config) -> Iterator[Finding]:
    """Settings that give away what bruce promises."""
    for weaker in weak_acks(config.dispatch):
        yield Finding(NAME, Level.ADVICE, weaker, ACKS_REMEDY)
    if not (config.dispatch.dead_letter_topic or config.dispatch.discard_file):
        yield Finding(
            NAME,
            Level.ADVICE,
            "messages that Kafka will never take are counted, and gone",
            "name a [dispatch] dead_letter_topic or discard_file",
        )
    if config.dispatch.engine == SPARK:
        yield Finding(
            NAME,
            Level.OK,
            '[dispatch] engine is "spark": only jobs deliver, such as brucectl spark run',
        )


def check_secrets(config: Config, named: Path | None) -> Iterator[Finding]:
    """Whether others can read a file with passwords."""
    places = {setting.where for path, setting in given_settings(named).items() if is_secret(path)}
    if config.file and str(config.file) in places and config.file.stat().st_mode & 0o004:
        yield Finding(
            NAME,
            Level.PROBLEM,
            f"{config.file} has secrets, and everybody on this host can read it",
            f"chmod o-rwx {os.fspath(config.file)}",
        )


class Examination:
    """Findings, each as soon as it is known, and after them the plan."""

    def __init__(self, named: Path | None, *, plan: bool = False) -> None:
        """`named`: the configuration to look at, as --config has it. `plan`: whether to make one."""
        self._named, self._wanted = named, plan
        self.plan: Plan | None = None

    def findings(self) -> Iterator[Finding]:
        """All checks that can be made."""
        yield from host.look_at_environment()
        config, found = load(self._named)
        yield from found
        if config is None:
            yield from host.look(None)
            return
        snapshot, found = spools.look_at(config.spool.directory)
        yield from host.look(spools.pid_of(snapshot, "ingest"))
        yield from disk.look(config.spool)
        yield from found
        yield from self._look_at_segments(config)
        yield from spools.look_for_others(config)
        room_s = None if self.plan is None else self.plan.mean.hours * HOUR_S
        yield from witness.look(config.witness.directory)
        yield from kafka.look(config, room_s=room_s)

    def _look_at_segments(self, config: Config) -> Iterator[Finding]:
        damaged: list[str] = []
        layout = Layout(config.spool.directory)
        try:
            segments = list(overview(segment_paths(layout), layout))
            yield from spools.check_clock(segments)
            if self._wanted:
                self.plan = _plan(config, segments, damaged.append)
        except (SpoolError, OSError) as error:
            yield Finding("plan", Level.UNKNOWN, f"no rate can be measured: {error}")
            return
        if self._wanted and self.plan is None:
            yield Finding(
                "plan", Level.UNKNOWN, "the spool has too little to measure a rate by: ask when it has more"
            )
        for sentence in damaged:
            yield Finding("plan", Level.PROBLEM, sentence, "see brucectl inspect verify")


def _plan(config: Config, segments: list[Overview], damaged: Callable[[str], None]) -> Plan | None:
    in_use = [one.path for one in segments if one.state is State.OPEN]
    return make_plan(config.spool, segments, timeline(in_use, Span(), _MOST_STEPS, damaged, fleeting=True))
