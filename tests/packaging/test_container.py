"""The image and the topology of the repository, as far as they can be held without a container engine."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from fixtures.server import clean_environment, running_server

from bunqueue_core.config.settings import TimeoutSettings
from bunqueue_core.server.lifecycle import BACKUPS_S, CLOSE_S, EVENTS_S

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = (ROOT / "docker-compose.postgres.yml").read_text(encoding="utf-8")


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile, in order."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def final_stage() -> list[tuple[str, str]]:
    found = instructions()
    last = max(place for place, (name, _) in enumerate(found) if name == "FROM")
    return found[last:]


def topology() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(COMPOSE)
    return content


def test_the_image_runs_as_a_user_without_rights() -> None:
    users = [arguments for name, arguments in final_stage() if name == "USER"]
    assert users
    for user in users[-1].split(":"):
        assert int(user) > 0
    names = [name for name, _ in final_stage()]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "install --directory --owner=bunqueue" in DOCKERFILE


def test_the_image_asks_the_server_for_its_health() -> None:
    (check,) = [arguments for name, arguments in final_stage() if name == "HEALTHCHECK"]
    command = json.loads(check[check.index("CMD ") + 4 :])
    assert command == ["bunqueue", "healthcheck"]


def test_the_image_starts_the_server_on_the_ports_that_it_names() -> None:
    stage = dict(final_stage())
    command = json.loads(stage["ENTRYPOINT"]) + json.loads(stage["CMD"])
    assert command[command.index("--") + 1 :] == ["bunqueue", "start"]
    assert stage["EXPOSE"].split() == ["6789", "6790"]
    assert stage["STOPSIGNAL"] == "SIGTERM"


def test_signals_reach_a_server_that_is_still_being_loaded() -> None:
    # Process 1 gets no signal that it has no handler for, and the server has its own only once its modules are imported.
    assert json.loads(dict(final_stage())["ENTRYPOINT"]) == ["tini", "-s", "--", "bunqueue"]
    installed = [arguments for name, arguments in final_stage() if name == "RUN" and "apt-get install" in arguments]
    assert any("tini" in shlex.split(arguments) for arguments in installed)


def test_the_image_is_built_from_what_is_there_and_nothing_else() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")]
    for name, arguments in instructions():
        if name != "COPY" or "--from=" in arguments:
            continue
        for source in arguments.split()[:-1]:
            assert (ROOT / source).exists()
            assert source in allowed
    installed = next(arguments for name, arguments in instructions() if "pip install" in arguments)
    for word in shlex.split(installed):
        if word.startswith("./"):
            assert (ROOT / word / "pyproject.toml").exists()
    plugins = {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")}
    assert plugins == set(re.findall(r"\./plugins/(\w+)", installed))


def test_images_come_from_the_default_place_and_are_named_exactly() -> None:
    images = [arguments.split()[0] for name, arguments in instructions() if name == "FROM"]
    images.append(topology()["services"]["postgres"]["image"])
    for image in images:
        assert re.fullmatch(r"[a-z]+:[\w.-]+", image), image
    assert images[-1] == "postgres:18.6-alpine"
    assert "index-url" not in DOCKERFILE


@pytest.mark.parametrize(("broker", "tcp", "http"), [("broker-a", 6789, 6790), ("broker-b", 7789, 7790)])
def test_brokers_have_their_ports_and_names(broker: str, tcp: int, http: int) -> None:
    service = topology()["services"][broker]
    assert service["ports"] == [f"{tcp}:6789", f"{http}:6790"]
    assert service["environment"]["BUNQUEUE_BROKER_ID"] == broker
    assert service["environment"]["BUNQUEUE_STORAGE_DRIVER"] == "postgres"
    assert service["build"] == "."
    assert service["depends_on"]["postgres"]["condition"] == "service_healthy"


@pytest.mark.parametrize("broker", ["broker-a", "broker-b"])
def test_brokers_are_given_the_time_that_an_orderly_stop_may_take(broker: str) -> None:
    longest = TimeoutSettings().shutdown / 1000 + BACKUPS_S + EVENTS_S + CLOSE_S
    given = topology()["services"][broker]["stop_grace_period"]
    assert int(given.removesuffix("s")) > longest
    page = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    for seconds in re.findall(r"--stop-timeout (\d+)", DOCKERFILE + page):
        assert int(seconds) > longest


def test_secrets_are_inputs_of_their_own() -> None:
    services = topology()["services"]
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    urls = {services[broker]["environment"]["BUNQUEUE_POSTGRES_URL"] for broker in ("broker-a", "broker-b")}
    assert len(urls) == 1
    assert urls.pop().startswith("${BUNQUEUE_POSTGRES_URL:?")
    uncommented = re.sub(r"^\s*#.*\n", "", COMPOSE, flags=re.MULTILINE)
    assert not re.search(r"postgres(ql)?://", uncommented)
    assert "POSTGRES_PASSWORD" not in str(services["broker-a"])


def test_every_variable_is_one_that_the_server_knows() -> None:
    reference = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for name in topology()["services"]["broker-a"]["environment"]:
        assert f"`{name}`" in reference, name


def test_the_health_command_follows_the_server() -> None:
    command = [sys.executable, "-c", "from bunqueue_core.cli import main; main()", "healthcheck"]
    with running_server() as server:
        variables = {**clean_environment(), "HTTP_PORT": str(server.http_port)}
        assert subprocess.run(command, env=variables, capture_output=True, check=False).returncode == 0
        server.stop()
        assert subprocess.run(command, env=variables, capture_output=True, check=False).returncode == 1
