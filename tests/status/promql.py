"""The part of PromQL that our alert rules use, over two scrapes that span every range.

comparison := vector ("==" | ">") (number | number " * " vector)
vector     := selector | selector " offset " range | "increase(" selector "[" range "])"
            | "sum by (labels) (" vector ")" | vector " - " vector | "time() - " vector
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Scrape = Mapping[str, Mapping[Labels, float]]

_COMPARISON = re.compile(r"(?P<vector>.+) (?P<how>==|>) (?P<number>[\d.]+)(?: \* (?P<times>.+))?")
_SUM = re.compile(r"sum by \((?P<labels>[\w, ]+)\) \((?P<vector>.+)\)")
_INCREASE = re.compile(r"increase\((?P<selector>.+)\[\w+\]\)")
_OFFSET = re.compile(r"(?P<selector>\S+) offset \w+")
_SELECTOR = re.compile(r"(?P<name>\w+)(?:\{(?P<matchers>[^}]*)\})?")
_MATCHER = re.compile(r'(\w+)="([^"]*)"')


def read(exposition: bytes, **more: str) -> dict[str, dict[Labels, float]]:
    """A scrape; `more`: the labels that Prometheus adds to each series."""
    found: dict[str, dict[Labels, float]] = defaultdict(dict)
    for family in text_string_to_metric_families(exposition.decode()):
        for sample in family.samples:
            found[sample.name][frozenset({**sample.labels, **more}.items())] = sample.value
    return found


def holds(expression: str, before: Scrape, now: Scrape) -> list[dict[str, str]]:
    """The labels of the series that the expression finds."""
    found = _COMPARISON.fullmatch(expression)
    assert found, expression
    limit, values = float(found["number"]), _vector(found["vector"], before, now)
    of = _vector(found["times"], before, now) if found["times"] else dict.fromkeys(values, 1.0)
    return [
        dict(at)
        for at, value in values.items()
        # A series without a counterpart is not compared.
        if at in of and (value == limit * of[at] if found["how"] == "==" else value > limit * of[at])
    ]


def _vector(text: str, before: Scrape, now: Scrape) -> dict[Labels, float]:
    first, minus, second = text.partition(" - ")
    if minus:
        less = _vector(second, before, now)
        if first == "time()":
            return {at: time.time() - value for at, value in less.items()}
        return {at: value - less[at] for at, value in _vector(first, before, now).items() if at in less}
    if found := _SUM.fullmatch(text):
        kept = set(found["labels"].split(", "))
        total: dict[Labels, float] = defaultdict(float)
        for at, value in _vector(found["vector"], before, now).items():
            total[frozenset(pair for pair in at if pair[0] in kept)] += value
        return total
    if found := _INCREASE.fullmatch(text):
        old = _select(found["selector"], before)
        # A new series has no increase, as in Prometheus.
        return {at: value - old[at] for at, value in _select(found["selector"], now).items() if at in old}
    if found := _OFFSET.fullmatch(text):
        return _select(found["selector"], before)
    return _select(text, now)


def _select(text: str, scrape: Scrape) -> dict[Labels, float]:
    found = _SELECTOR.fullmatch(text)
    assert found, text
    wanted = set(_MATCHER.findall(found["matchers"] or ""))
    return {at: value for at, value in scrape.get(found["name"], {}).items() if wanted <= at}
