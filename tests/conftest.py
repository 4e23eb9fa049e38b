"""The whole suite's set-up: which tests run, in which order, on which worker; and a run's closing lines."""

import functools
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tools.class_data import frugal_environ

pytest_plugins = ["tests.spark"]
FIRST = ("real_kafka", "pipeline", "install", "tools", "e2e", "forgetful", "cli", "ingest", "router")
"""Folders whose files take longest, in this order: one begun last would keep the other workers waiting."""
ON_SPARK = ("tests/pipeline/", "tests/cli/commands/spark/")
MOST_FLAKY = 5
LEFT = pytest.StashKey[int]()
"""How many tests `-m "not long"` has left out."""


class ByFile(LoadFileScheduling):
    """A file is one worker's, and so are all files that share brokers or a Spark session.

    Otherwise each worker would start its own. The files on real Kafka make two lines, of which the one that
    names `kafka3` has the cluster of three brokers: a single line would last longer than all other tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/real_kafka/"):
            return "three brokers" if "kafka3" in text_of(self.config.rootpath, nodeid) else "one broker"
        if nodeid.startswith(ON_SPARK) and needs_session(text_of(self.config.rootpath, nodeid)):
            return "a Spark session"
        return super()._split_scope(nodeid)


@functools.cache
def text_of(root: Path, nodeid: str) -> str:
    """The text of a test's file."""
    return (root / nodeid.partition("::")[0]).read_text(encoding="utf-8")


def needs_session(text: str) -> bool:
    """Whether a file has tests that use the session: by its type, its commands, or as one of the engines."""
    return any(word in text for word in ("SparkSession", "from tests.spark import", "pipeline.engine import"))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Distribute the tests over several workers (`--numprocesses`)."""
    return ByFile(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Let JVMs start soon."""
    for name, value in frugal_environ().items():
        os.environ.setdefault(name, value)


@pytest.fixture(autouse=True)
def stop_signals() -> Iterator[None]:
    """A command that runs in the tests' process may set handlers: the next test finds those of Python."""
    yield
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the long files, mark the cases beside a sample, and refuse a `flaky` without a reason.

    Within a file the order does not change. Raises pytest.UsageError.
    """
    items.sort(key=place_of)
    # A run that asks for no mark may ask for single cases.
    mark_beside_samples(items, strict=bool(config.option.markexpr))
    check_flaky(items, config.rootpath / "CONTRIBUTING.md")


def place_of(item: pytest.Item) -> int:
    """When the files of a test's folder are begun."""
    places = (place for place, folder in enumerate(FIRST) if item.nodeid.startswith(f"tests/{folder}/"))
    return next(places, len(FIRST))


def mark_beside_samples(items: list[pytest.Item], *, strict: bool) -> None:
    """Mark the cases that are in no `sample` as `long`.

    `strict`: raise pytest.UsageError for an id that no case has.
    """
    for name, mark, cases in list_samples(items):
        if strict and (missing := set(mark.args) - set(cases)):
            raise pytest.UsageError(f"{name}: `sample` names cases that are not there: {sorted(missing)}")
        row = mark.kwargs.get("one_of", 1)
        for number, (id_, item) in enumerate(cases.items()):
            if id_ not in mark.args if mark.args else number % row != number // row % row:
                item.add_marker(pytest.mark.long)


def list_samples(items: list[pytest.Item]) -> list[tuple[str, pytest.Mark, dict[str, pytest.Item]]]:
    """The tests with `sample`: name, mark, and the cases by their ids."""
    cases: dict[str, dict[str, pytest.Item]] = {}
    marks: dict[str, pytest.Mark] = {}
    for item in items:
        if mark := item.get_closest_marker("sample"):
            name, _, id_ = item.nodeid.partition("[")
            marks[name] = mark
            cases.setdefault(name, {})[id_.removesuffix("]")] = item
    return [(name, marks[name], found) for name, found in cases.items()]


def check_flaky(items: list[pytest.Item], contributing: Path) -> None:
    """Each needs its reason, and a line in CONTRIBUTING.md. Raises pytest.UsageError."""
    reasons = {item.nodeid.partition("[")[0]: reason_of(item) for item in items if is_flaky(item)}
    if len(reasons) > MOST_FLAKY:
        raise pytest.UsageError(f"{len(reasons)} tests are flaky; at most {MOST_FLAKY} may be: mend some")
    listed = contributing.read_text(encoding="utf-8") if reasons else ""
    for name, reason in reasons.items():
        if not reason or name.rpartition("::")[2] not in listed:
            raise pytest.UsageError(f"{name}: give `flaky` a reason, and list the test in CONTRIBUTING.md")


def is_flaky(item: pytest.Item) -> bool:
    """Whether a test is known to fail now and then."""
    return item.get_closest_marker("flaky") is not None


def reason_of(item: pytest.Item) -> str:
    """The reason that the mark gives."""
    mark = item.get_closest_marker("flaky")
    return str(mark.args[0]) if mark and mark.args else ""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Say beside the traceback that a test is known to flake; it has failed all the same."""
    outcome = yield
    report = outcome.get_result()
    if report.failed and is_flaky(item):
        report.sections.append(("known to flake", reason_of(item)))


def pytest_collection_finish() -> None:
    """Have the collector pass over what is there: thousands of tests would be looked at each time."""
    gc.collect()
    gc.freeze()


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what is left for a complete run."""
    if items:
        config = items[0].config
        count = sum(item.get_closest_marker("long") is not None for item in items)
        config.stash[LEFT] = config.stash.get(LEFT, 0) + count


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that reports what a worker has left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = session.config.stash.get(LEFT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over the count of a worker: each worker collects the same tests."""
    left = getattr(node, "workeroutput", {}).get("left", 0)
    node.config.stash[LEFT] = max(left, node.config.stash.get(LEFT, 0))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print how many tests needed real Kafka, so that a run without it cannot pass for one with it.

    And how many were left for a complete run.
    """
    stats = terminalreporter.stats
    reasons = [reason for report in stats.get("skipped", []) if (reason := missing_kafka(report))]
    if reasons:
        line = f"real Kafka: {len(reasons)} tests skipped ({reasons[0]})"
    else:
        reports = stats.get("passed", []) + stats.get("failed", [])
        line = f"real Kafka: {sum('real_kafka' in report.keywords for report in reports)} tests ran"
    terminalreporter.write_line(line)
    if left := config.stash.get(LEFT, 0):
        terminalreporter.write_line(f"long tests: {left} left for tools/test --all")


def missing_kafka(report: pytest.TestReport) -> str | None:
    """Why real Kafka was missing, when that is why the test was skipped."""
    if "real_kafka" not in report.keywords or not isinstance(report.longrepr, tuple):
        return None
    _path, _line, message = report.longrepr
    _skipped, found, reason = message.partition("no real Kafka: ")
    return reason if found else None
