"""Files that an operator names and bruce reads whole: a device, a huge file or a pipe ends in a sentence."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cli.config.config import load_config
from cli.config.settings import read_small
from cli.terminal import errors
from status.access import BadAccess, StatusOptions, open_access
from tests.cli.program import run

READERS = {
    "configuration": ["status", "--config"],
    "cluster": ["replay", "--from", "0", "--kafka"],
    "conversion": ["config", "convert"],
}
"""Commands that read a file, whose name comes last."""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("device", ["/dev/full", "/dev/zero", "/dev/random"])
def test_a_device_that_never_ends(reader: str, device: str) -> None:
    """A sentence with its name, and exit code 2."""
    assert_refused(reader, device, "it has more than 1 MiB")


@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_10_gb(reader: str, tmp_path: Path) -> None:
    """It is not read into memory."""
    huge = tmp_path / "huge.toml"
    huge.touch()
    os.truncate(huge, 10 << 30)
    assert_refused(reader, huge, "it has more than 1 MiB")


@pytest.mark.parametrize("writer", ["nobody", "somebody who says nothing"])
def test_a_pipe_without_an_end(writer: str, tmp_path: Path) -> None:
    """The command gives up on it."""
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR) if writer != "nobody" else None
    with pytest.raises(OSError, match=r"its end has not come within 0\.01 s"):
        read_small(pipe, 0.01)
    if held is not None:
        os.close(held)


def assert_refused(reader: str, path: object, reason: str) -> None:
    """One sentence with the name, and exit code 2."""
    done = run(*READERS[reader], path)
    assert (done.returncode, done.stdout) == (errors.USAGE, "")
    assert done.stderr == f"{path}: cannot be read: {reason}\n"


def test_a_pipe_with_a_configuration() -> None:
    """`--config <(decrypt FILE)` is read to its end, however late that comes."""
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "w") as file:
            for part in ('[kafka]\n"bootstrap', '.servers" = "k:1"\n'):
                file.write(part)
                file.flush()

    late = threading.Thread(target=write)
    late.start()
    try:
        config = load_config(Path(f"/dev/fd/{reader}"), environ={})
    finally:
        os.close(reader)
        late.join()
    assert config.dispatch.kafka == {"bootstrap.servers": "k:1"}


def test_a_token_that_never_ends() -> None:
    """It is refused by its beginning, like a token of zeros."""
    with pytest.raises(BadAccess, match="token_file /dev/zero"):
        open_access(StatusOptions(token_file=Path("/dev/zero")))
