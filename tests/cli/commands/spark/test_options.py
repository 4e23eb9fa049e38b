"""Options of every command of `brucectl spark`, and what Spark refuses of them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from cli.commands.spark.options import missing_topics, parse_conf
from cli.terminal.errors import BadArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from tests.pipeline.test_session import BRUCECTL


def test_conf_is_key_and_value() -> None:
    """A value may hold further signs; without key or sign it is refused in one sentence."""
    assert parse_conf(["spark.a=b=c", "spark.d="]) == {"spark.a": "b=c", "spark.d": ""}
    with pytest.raises(BadArgument, match=r"--conf spark\.a: it takes KEY=VALUE"):
        parse_conf(["spark.a"])


def test_missing_topics_are_on_one_line() -> None:
    """Names are cut, and command no terminal; five of them are named."""
    assert missing_topics({}) == ""
    assert missing_topics({"a\x1b[31m\nb": 2, "t" * 32_767: 3}) == (
        r"; Kafka does not have the topics a\x1b[31m\nb (2 messages), " + "t" * 59 + "… (3 messages)"
    )
    assert missing_topics({f"t{n}": 1 for n in range(7)}).endswith("t4 (1 message) and 2 others")


@pytest.mark.sample(one_of=2)
@pytest.mark.spark
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (["--master", "spork://x"], "Master must either be yarn or start with spark, k8s, or local"),
        (["--conf", "spark.driver.extraJavaOptions=-Xmx1g"], "Not allowed to specify max heap(Xmx)"),
    ],
)
def test_what_spark_refuses_is_one_sentence(spark: SparkSession, wrong: list[str], sentence: str) -> None:
    """A wrong master, or a JVM that does not start: one line, and exit code 2."""
    command = [*BRUCECTL, "spark", "audit", "/nowhere", "--bootstrap-servers", "127.0.0.1:1", *wrong]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Spark does not start: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
