"""The image and the compose file, as far as they can be tried without an engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from cli.config.config import load_config
from cli.doctor.host import LOCKED_BYTES
from tests.daemon import RunningBruce, free_port
from tests.install.machine import Machine, demand
from tests.test_wheel import contents
from tools.debian import INSTALL, ROOT

CONTAINER = INSTALL / "container"
USER = "10001"


@pytest.fixture(scope="module")
def image() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: name, and the rest of the line."""
    text = re.sub(r"^#.*\n", "", (CONTAINER / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").strip().splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines if line)]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The compose file."""
    found: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
    return found


def given(image: list[tuple[str, str]], name: str) -> list[str]:
    """All instructions of this name."""
    return [rest for instruction, rest in image if instruction == name]


def test_the_image_runs_bruce_as_nobody_special(image: list[tuple[str, str]]) -> None:
    """A fixed release of its base, a user with a number, programs that get their signals themselves."""
    assert all(re.fullmatch(r"python:3\.\d+-slim( AS \w+)?", base) for base in given(image, "FROM"))
    assert given(image, "USER")[-1] == f"{USER}:{USER}"
    for name in ("ENTRYPOINT", "CMD", "VOLUME"):
        assert json.loads(given(image, name)[-1])
    usual = {"FROM", "COPY", "RUN", "ENV", "USER", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in image} <= usual
    (check,) = given(image, "HEALTHCHECK")
    program = json.loads(check.partition("CMD ")[2])
    assert program[:2] == ["python", "-c"]
    compile(program[2], "HEALTHCHECK", "exec")


def test_the_health_check_tells(image: list[tuple[str, str]], tmp_path: Path) -> None:
    """Its program, run beside a daemon: 0 while the daemon lives, with Kafka or without, and then not."""
    (check,) = given(image, "HEALTHCHECK")
    _, option, text = json.loads(check.partition("CMD ")[2])
    port = free_port()
    command = [sys.executable, option, text.replace("9097", str(port))]

    def healthy() -> bool:
        return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0

    with RunningBruce(tmp_path, "127.0.0.1:9", settings={"status": {"port": port}}) as bruce:
        bruce.await_true(healthy)
        bruce.kill9()
        assert not healthy()


@pytest.mark.long
def test_what_is_sent_to_the_engine_is_enough(tmp_path: Path) -> None:
    """The wheel made of what Dockerfile.dockerignore lets through is the one that the tree makes."""
    for line in (CONTAINER / "Dockerfile.dockerignore").read_text().splitlines():
        if line.startswith("!"):
            source, target = ROOT / line[1:], tmp_path / "context" / line[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, target)
    assert (tmp_path / "context/install/container/bruce.toml").exists()
    of_context, of_tree = (
        contents(
            Path(next(WheelBuilder(str(root)).build(directory=str(tmp_path / name), versions=["standard"])))
        )
        for root, name in ((tmp_path / "context", "one"), (ROOT, "other"))
    )
    assert of_context == of_tree


def test_the_image_has_its_user_and_folders(image: list[tuple[str, str]]) -> None:
    """The steps that make them, run on a Debian: bruce owns what it writes to, by the promised number."""
    demand()
    with Machine(systemd=False) as machine:
        for step in given(image, "RUN"):
            if "groupadd" in step:
                machine.run("sh", "-ec", step)
        assert machine.run("id", "-u", "bruce") == machine.run("id", "-g", "bruce") == USER
        for folder in ("/var/lib/bruce", "/var/cache/bruce", "/run/bruce"):
            assert machine.run("stat", "-c", "%u:%g", folder) == f"{USER}:{USER}"


def test_the_image_is_configured(compose: dict[str, Any]) -> None:
    """Its bruce.toml is one, and names the folders and the Kafka that the compose file has."""
    config = load_config(CONTAINER / "bruce.toml", environ={})
    mounted = [volume.split(":")[1] for volume in compose["services"]["bruce"]["volumes"]]
    assert str(config.ingest.datagram_socket.parent) in mounted
    assert str(config.spool.directory) in mounted
    host, _, port = config.dispatch.kafka["bootstrap.servers"].partition(":")
    kafka = compose["services"][host]["environment"]
    assert kafka["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{host}:{port}"


def test_the_socket_is_shared(compose: dict[str, Any]) -> None:
    """Receiver and sender share it in the host's memory: not in a tmpfs that ends with its container."""
    services = compose["services"]
    for name in ("sockets", "bruce", "sender"):
        assert services[name]["volumes"].count("/run/bruce:/run/bruce") == 1
    assert "/run/bruce" not in services["bruce"]["tmpfs"]
    # The kernel asks for it where the socket is made.
    assert int(services["sockets"]["sysctls"]["net.unix.max_dgram_qlen"]) >= 512


def test_staging_can_be_locked_in_memory(compose: dict[str, Any]) -> None:
    """As much as doctor wants, and as the systemd unit allows."""
    allowed = int(compose["services"]["bruce"]["ulimits"]["memlock"])
    assert allowed >= LOCKED_BYTES
    assert f"LimitMEMLOCK={allowed >> 20}M" in (CONTAINER.parent / "systemd/bruce.service").read_text()


def test_the_sockets_are_held_beside_bruce(compose: dict[str, Any], tmp_path: Path) -> None:
    """The service's script, with the rights that it has there: the folder is bruce's, and so is the holder.

    bruce waits for it, so that the order in which an engine starts them after a reboot does not matter.
    """
    if os.geteuid():
        pytest.skip("becoming another user needs root")
    service = compose["services"]["sockets"]
    rights = ",".join(["-all", *(f"+{name.lower()}" for name in service["cap_add"])])
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "--held" in compose["services"]["bruce"]["command"]
    script = service["command"][0].replace("/run/bruce", str(tmp_path / "run"))
    # In place of the program: what it is run as, and what it may.
    (tmp_path / "bruce").write_text("#!/bin/sh\necho $*; id -u; id -g; id -G; grep Cap /proc/self/status\n")
    for path in (tmp_path / "bruce", tmp_path, *tmp_path.parents[:-2]):
        path.chmod(0o755)
    command = ["setpriv", f"--bounding-set={rights}", "--inh-caps=-all", "--no-new-privs"]
    said = subprocess.run(
        [*command, *service["entrypoint"], script],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        check=True,
        text=True,
    ).stdout.splitlines()
    assert said[:4] == ["hold-socket", USER, USER, USER]
    assert {line.split()[1] for line in said[4:] if "Bnd" not in line} == {"0" * 16}
    made = (tmp_path / "run").stat()
    assert (made.st_uid, made.st_gid, made.st_mode & 0o777) == (int(USER), int(USER), 0o755)


def test_who_is_asked_for_its_health(image: list[tuple[str, str]], compose: dict[str, Any]) -> None:
    """bruce, by the program of the Dockerfile, of which podman keeps none; not who else runs the image."""
    (check,) = given(image, "HEALTHCHECK")
    services = compose["services"]
    assert services["bruce"]["healthcheck"]["test"] == ["CMD", *json.loads(check.partition("CMD ")[2])]
    others = [name for name, service in services.items() if service["image"] == "bruce" and name != "bruce"]
    assert all(services[name]["healthcheck"] == {"disable": True} for name in others)


def test_podman_finds_what_is_fetched(image: list[tuple[str, str]], compose: dict[str, Any]) -> None:
    """By a registry's name; of those without one, podman knows `python` alone where nothing is set up."""
    fetched = {service["image"] for service in compose["services"].values() if "build" not in service}
    assert all("." in name.split("/")[0] for name in fetched)
    assert all(base.startswith("python:") for base in given(image, "FROM"))


def test_the_parts_refer_to_one_another(compose: dict[str, Any]) -> None:
    """Each volume is declared, each service waited for is there, and waited for until it can be relied on."""
    services, volumes = compose["services"], set(compose["volumes"])
    sources = {volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert {source for source in sources if not source.startswith("/")} == volumes
    for service in services.values():
        for other, wanted in service.get("depends_on", {}).items():
            assert other in services
            # bruce waits for its sockets by itself.
            assert wanted["condition"] == ("service_started" if other == "sockets" else "service_healthy")
        build = service.get("build")
        assert not build or (CONTAINER / build["context"] / build["dockerfile"]).resolve().exists()
