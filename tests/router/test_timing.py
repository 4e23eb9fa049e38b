"""The times of the router fit each other: pauses, looks and answers end before others begin."""

from __future__ import annotations

import ast
import inspect

from cli.daemon.delivery import REST_S
from dispatch.options import UNKNOWN_TOPIC_S, DispatchOptions, properties
from router import timing
from router.cluster.metadata import REST
from router.limits import SLOWEST
from tests.daemon import ROOT

TIMES = {name: value for name, value in vars(timing).items() if name.endswith("_S")}
PACKAGES = ("cli", "pipeline", "router")
REPEATED_S = 30.0
"""librdkafka repeats an error of a broker so often, at least."""


def imported_times() -> set[str]:
    """Those that our code imports."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    found = [one for one in nodes if isinstance(one, ast.ImportFrom) and one.module == timing.__name__]
    return {alias.name for one in found for alias in one.names}


def test_each_time_is_used() -> None:
    """Nothing waits for no time, and no time is here that the code does not use."""
    assert min(TIMES.values()) > 0
    assert imported_times() == TIMES.keys()


def test_the_loop_wakes_up_in_time() -> None:
    """A sleep ends before a commit, a look, or another try is late; an idle loop still rests longer."""
    assert TIMES["IDLE_S"] <= min(timing.COMMIT_S, timing.OBSERVE_S, timing.DECLINED_S, timing.PAUSE_S)
    assert timing.IDLE_S < REST_S
    # While only reports are waited for, it sleeps until marks are due.
    assert timing.WRITTEN_S < timing.FEW_COMMIT_S < REST_S


def test_pauses_follow_the_hope() -> None:
    """The sooner an error may be over by itself, the sooner is the next try."""
    assert timing.DECLINED_S < timing.PAUSE_S < timing.STOP_S


def test_the_pause_between_producers_grows_and_ends() -> None:
    """Doubled from the first on, it comes to the longest after some tries, neither at once nor never."""
    pauses = [timing.FIRST_REBUILD_S]
    while pauses[-1] < timing.LONGEST_REBUILD_S:
        pauses.append(min(timing.LONGEST_REBUILD_S, 2 * pauses[-1]))
    assert 5 < len(pauses) < 15


def test_an_outage_is_seen_by_several_looks() -> None:
    """States are looked at so often that no broker is away for OUTAGE_S between two looks."""
    assert 10 * timing.OBSERVE_S <= timing.OUTAGE_S


def test_what_a_pass_begins_for_fits_into_its_bucket() -> None:
    """A bucket holds the messages of a second: a pass that waited for more would never begin."""
    assert timing.WORTHWHILE_S <= 1
    assert timing.WORTHWHILE_S * SLOWEST <= 1


def test_the_rate_of_a_backlog_changes_while_it_goes() -> None:
    """Hosts that came back together are kept apart by a delay, which users read of, and by changing rates."""
    assert timing.BACKLOG_DRAW_S < timing.BACKLOG_DELAY_S
    assert f"up to\n    {timing.BACKLOG_DELAY_S:.0f} s by chance" in inspect.getsource(DispatchOptions)


def test_kafka_is_asked_again_before_it_is_called_silent() -> None:
    """Several brokers have had the time for an answer by then: each try asks another one."""
    tries = timing.PATIENCE_S // (timing.METADATA_ANSWER_S + timing.METADATA_RETRY_S)
    assert tries >= 2
    assert timing.METADATA_RETRY_S < timing.METADATA_ANSWER_S < timing.REFRESH_S
    assert REST * timing.METADATA_RETRY_S < timing.METADATA_ANSWER_S


def test_a_list_is_there_before_the_next_is_asked_for() -> None:
    """Its answer is waited for, or given up, within the age that it may have."""
    assert timing.LIST_ANSWER_S < timing.LIST_S


def test_a_topic_has_fewer_partitions_by_several_answers() -> None:
    """One broker that lags behind does not take a partition away: looks come in between."""
    assert timing.SHRINK_S >= 3 * timing.REFRESH_S


def test_names_are_forgotten_in_time() -> None:
    """Looks for them come several times before one is due, and a name outlasts the grace time of a topic."""
    assert 2 * timing.FORGET_EVERY_S <= timing.FORGET_S
    assert timing.FORGET_S >= UNKNOWN_TOPIC_S


def test_an_error_that_lasts_stays_a_trouble() -> None:
    """librdkafka says it again before it is taken for over, and the log says it no sooner than that."""
    assert timing.FRESH_S >= 2 * REPEATED_S
    assert timing.QUIET_S >= timing.FRESH_S


def test_statistics_are_no_older_than_the_slack() -> None:
    """An error that was said behind the last statistics is newer than the connection that they tell of."""
    found = properties(DispatchOptions(kafka={"bootstrap.servers": "127.0.0.1:1"}))
    assert 2 * int(found["statistics.interval.ms"]) <= 1000 * timing.SLACK_S
