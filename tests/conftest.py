"""What all tests share: the count of those that ran against real Kafka, or could not."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that the count goes by."""
    config.addinivalue_line("markers", "real_kafka: needs real brokers, which tools/kafka starts")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line, so that a run without real Kafka cannot pass for one with it."""
    stats = terminalreporter.stats
    reasons = [reason for report in stats.get("skipped", []) if (reason := missing_kafka(report))]
    if reasons:
        line = f"real Kafka: {len(reasons)} tests skipped ({reasons[0]})"
    else:
        reports = stats.get("passed", []) + stats.get("failed", [])
        line = f"real Kafka: {sum('real_kafka' in report.keywords for report in reports)} tests ran"
    terminalreporter.write_line(line)


def missing_kafka(report: pytest.TestReport) -> str | None:
    """Why real Kafka was missing, when that is why the test was skipped."""
    if "real_kafka" not in report.keywords or not isinstance(report.longrepr, tuple):
        return None
    _path, _line, message = report.longrepr
    _skipped, found, reason = message.partition("no real Kafka: ")
    return reason if found else None
