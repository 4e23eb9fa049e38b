"""bruce.toml: whether the daemon would start with it, and what in it is weaker than it need be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cli.config import Config, given_settings, load_config
from cli.doctor.finding import Finding, Level
from cli.effective import is_secret
from cli.exits import KNOWN
from cli.trial import try_parts
from dispatch.options import SPARK, properties

NAME = "configuration"


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
    """Where the settings come from."""
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
    acks = properties(config.dispatch)["acks"]
    if config.dispatch.mode != "at_most_once" and acks not in ("all", "-1"):
        yield Finding(
            NAME,
            Level.ADVICE,
            f'[kafka] "acks" is {acks}: what one broker has acknowledged is lost when that broker is',
            'leave out "acks", which is then all',
        )
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
