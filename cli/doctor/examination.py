"""All checks of the doctor, one after the other, and what the spool tells a planner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from cli.config import Config
from cli.doctor import configuration, disk, environment, host, kafka, spools
from cli.doctor.finding import Finding, Level
from cli.doctor.plan import Plan, make_plan
from spool.errors import SpoolError
from spool.files import Span
from spool.layout import Layout
from spool.overview import Overview, State, overview, segment_paths
from spool.timeline import timeline

_MOST_STEPS = 3600
"""Of the segment in use."""


class Examination:
    """Findings, each as soon as it is known, and after them the plan."""

    def __init__(self, named: Path | None, *, plan: bool = False) -> None:
        """`named`: the configuration to look at, as --config has it. `plan`: whether to make one."""
        self._named, self._wanted = named, plan
        self.plan: Plan | None = None

    def findings(self) -> Iterator[Finding]:
        """All checks that can be made."""
        yield from environment.look()
        config, found = configuration.load(self._named)
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
        yield from kafka.look(config)

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
