"""The commands to a server, against a real one: what they print, for people and for machines, and how they end."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_call import Call, Outcome
from fixtures.server import ServerProcess, running_server

from bunqueue_core import __version__
from bunqueue_core.cli.app import COMMANDS as REGISTRY
from bunqueue_core.cli.network import STATES, VERBS, WEBHOOK_EVENTS, Verb
from bunqueue_core.commands import COMMANDS

_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with running_server(arguments=("--auth-tokens", "secret")) as process:
        yield process


@pytest.fixture
def cli(server: ServerProcess, bunqueue: Call, monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command line with that server's address and token in its environment."""
    monkeypatch.setenv("BUNQUEUE_HOST", "127.0.0.1")
    monkeypatch.setenv("BUNQUEUE_TCP_PORT", str(server.port))
    monkeypatch.setenv("BUNQUEUE_TOKEN", "secret")
    return bunqueue


def said(outcome: Outcome, text: str) -> None:
    """The command succeeded and printed ``text`` and nothing else."""
    assert (outcome.code, outcome.out, outcome.err) == (0, text + "\n", "")


def refused(outcome: Outcome, code: int, text: str) -> None:
    """The command ended with ``code`` and the error ``text``."""
    assert (outcome.code, outcome.out, outcome.err) == (code, "", f"Error: {text}\n")


# -- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_asks_for_what_its_command_takes(verb: Verb) -> None:
    command = COMMANDS[verb.wire]
    taken = {field.name for field in command.fields}
    fields = {argument.field for argument in verb.arguments} | {option.field for option in verb.options}
    fields |= set(verb.fixed or ())
    if command.job_input:
        return  # its members are job options, which the reader of jobs checks
    assert fields <= taken
    assert {field.name for field in command.fields if field.required} <= fields


def test_registry_and_table_have_the_same_surface(bunqueue: Call) -> None:
    families: dict[str, list[str]] = {}
    for verb in VERBS:
        family, _, name = verb.name.partition(" ")
        families.setdefault(family, []).extend([name] if name else [])
    assert families.keys() <= REGISTRY.keys()
    for family, names in families.items():
        help_ = bunqueue(family, "--help").out
        assert all(re.search(rf"^  {re.escape(name)} ", help_, re.MULTILINE) for name in names)
    for verb in VERBS:
        assert bunqueue(*verb.name.split(), "--help").out.startswith(f"Usage: bunqueue {verb.name}")


# -- the life of jobs -------------------------------------------------------------------------------------------------


def test_a_job_from_push_to_its_result(cli: Call) -> None:
    said(cli("push", "life", '{"to":"ada"}', "--job-id", "life-1", "-P", "3", "--tags", "a,b"), "Job created: life-1")
    said(cli("push", "life", "{}", "--job-id", "life-1"), "Job created: life-1")
    said(cli("job", "state", "life-1"), "State: prioritized")
    pulled = cli("pull", "life")
    assert [_INSTANT.sub("INSTANT", line) for line in pulled.out.splitlines()] == [
        "Job: life-1",
        "  Queue:      life",
        "  State:      active",
        "  Priority:   3",
        "  Attempts:   0/3",
        '  Data:       {"to":"ada"}',
        "  Created:    INSTANT",
        "  Started:    INSTANT",
    ]
    said(cli("job", "progress", "life-1", "50", "-m", "half"), "OK")
    assert "  Progress:   50%" in cli("job", "get", "life-1").out
    said(cli("job", "result", "life-1"), "No result available (job not completed or result was removed)")
    said(cli("ack", "life-1", "-r", '{"sent":true}'), "OK")
    said(cli("job", "result", "life-1"), 'Result: {\n  "sent": true\n}')
    said(cli("job", "wait", "life-1"), 'Result: {\n  "sent": true\n}')
    said(cli("pull", "life", "-t", "1"), "No job available")


def test_json_is_the_response_of_the_server(cli: Call) -> None:
    assert json.loads(cli("push", "as-json", "-5", "--job-id", "as-json-1", "--json").out) == {
        "ok": True,
        "id": "as-json-1",
    }
    document = json.loads(cli("job", "get", "as-json-1", "--json").out)
    assert (document["ok"], document["job"]["data"], document["job"]["state"]) == (True, -5, "waiting")
    assert isinstance(document["job"]["createdAt"], int)
    refusal = cli("job", "get", "nobody", "--json")
    assert (refusal.code, refusal.out, refusal.err) == (1, "", '{\n  "ok": false,\n  "error": "Job not found"\n}\n')
    own = cli("job", "state", "nobody", "--json")
    assert (own.code, own.out, own.err) == (1, "", '{"ok":false,"error":"Job not found"}\n')
    wrong = cli("push", "as-json", "--json")
    assert (wrong.code, wrong.out, wrong.err) == (2, "", '{"ok":false,"error":"Missing required argument: data"}\n')


def test_a_failed_job_becomes_a_dead_letter_and_comes_back(cli: Call) -> None:
    cli("push", "dead", "{}", "--job-id", "dead-1", "--max-attempts", "1")
    cli("pull", "dead")
    said(cli("fail", "dead-1", "-e", "no mailbox"), "OK")
    listed = cli("dlq", "list", "dead").out
    assert _INSTANT.sub("INSTANT", listed) == "  dead-1\n    Queue: dead\n    Error: no mailbox\n    Failed: INSTANT\n"
    said(cli("dlq", "retry", "dead", "--id", "dead-1"), "Count: 1")
    said(cli("dlq", "list", "dead"), "DLQ is empty")
    said(cli("job", "discard", "dead-1"), "OK")
    said(cli("dlq", "purge", "dead"), "Count: 1")
    refused(cli("job", "wait", "dead-1", "-t", "1"), 1, "Job not found")


def test_what_can_be_changed_of_a_job(cli: Call) -> None:
    cli("push", "change", "{}", "--job-id", "change-1", "--delay", "3600000")
    said(cli("job", "update", "change-1", '{"n":2}'), "OK")
    said(cli("job", "priority", "change-1", "7"), "OK")
    said(cli("job", "delay", "change-1", "7200000"), "OK")
    said(cli("job", "log", "change-1", "looked at"), "OK")
    said(cli("job", "log", "change-1", "odd", "-l", "warn"), "OK")
    lines = _INSTANT.sub("INSTANT", cli("job", "logs", "change-1").out)
    assert lines == "  [INSTANT] INFO: looked at\n  [INSTANT] WARN: odd\n"
    said(cli("job", "logs", "nobody"), "No logs found")
    job = json.loads(cli("job", "get", "change-1", "--json").out)["job"]
    assert (job["data"], job["priority"], job["state"]) == ({"n": 2}, 7, "delayed")
    refused(cli("job", "wait", "change-1", "-t", "1"), 1, "Job not completed within timeout")
    said(cli("job", "promote", "change-1"), "OK")
    refused(cli("job", "promote", "change-1"), 1, "Job not found or not delayed")
    said(cli("job", "cancel", "change-1"), "OK")
    refused(cli("job", "cancel", "change-1"), 1, "Job not found or cannot be cancelled")


def test_queues(cli: Call) -> None:
    for number in range(3):
        cli("push", "many", str(number), "--job-id", f"many-{number}")
    assert "  - many" in cli("queue", "list").out.splitlines()
    said(cli("queue", "count", "many"), "Count: 3")
    said(cli("queue", "pause", "many"), "OK")
    said(cli("queue", "paused", "many"), "Queue is paused")
    said(cli("queue", "resume", "many"), "OK")
    said(cli("queue", "paused", "many"), "Queue is active")
    assert cli("queue", "jobs", "many", "-l", "2").out.splitlines() == [
        "ID                   Queue           State        Priority   Attempts",
        "-" * 75,
        "many-0               many            waiting      0          0/3",
        "many-1               many            waiting      0          0/3",
    ]
    said(cli("queue", "jobs", "many", "-s", "failed"), "No jobs found")
    said(cli("queue", "clean", "many", "-g", "0", "-l", "1"), "Cleaned 1 jobs: many-0")
    said(cli("queue", "drain", "many"), "Count: 2")
    said(cli("queue", "clean", "many", "-g", "0"), "Cleaned 0 jobs")
    said(cli("queue", "obliterate", "many"), "OK")
    for family in ("rate-limit", "concurrency"):
        said(cli(family, "set", "many", "5"), "OK")
        said(cli(family, "clear", "many"), "OK")


def test_schedules(cli: Call) -> None:
    said(cli("cron", "list"), "No cron jobs found")
    saved = cli("cron", "add", "nightly", "-q", "cron", "-d", "{}", "-s", "@daily", "-z", "Europe/Rome").out
    assert _INSTANT.sub("INSTANT", saved) == "Cron scheduled: nightly (next run: INSTANT)\n"
    cli("cron", "add", "often", "-q", "cron", "-d", "{}", "-e", "3600000", "--max-limit", "5")
    listed = _INSTANT.sub("INSTANT", cli("cron", "list").out)
    assert sorted(listed.strip("\n").split("\n\n")) == [
        "  nightly\n    Queue: cron\n    Schedule: @daily\n    Executions: 0\n    Next run: INSTANT\n"
        "    Timezone: Europe/Rome",
        "  often\n    Queue: cron\n    Schedule: every 3600000ms\n    Executions: 0\n    Next run: INSTANT\n    Max: 5",
    ]
    for name in ("nightly", "often"):
        said(cli("cron", "delete", name), "OK")
    refused(cli("cron", "delete", "often"), 1, "Cron job not found")


def test_workers_and_webhooks(cli: Call) -> None:
    said(cli("worker", "list"), "No workers registered")
    registered = cli("worker", "register", "me", "-q", "a,b")
    assert registered.out.startswith("Worker registered: ")
    assert "expires when this command exits" in registered.err
    refused(cli("worker", "unregister", "nobody"), 1, "Worker not found")
    said(cli("webhook", "list"), "No webhooks registered")
    added = cli("webhook", "add", "https://example.com/x", "-e", "job.completed,job.failed", "-q", "q")
    id_ = added.out.removeprefix("Webhook added: ").strip()
    said(
        cli("webhook", "list"),
        f"  {id_}: https://example.com/x\n    Events: job.completed, job.failed\n    Queue: q\n"
        "    Delivered: 0 ok / 0 failed",
    )
    said(cli("webhook", "remove", id_), "OK")
    refused(
        cli("webhook", "add", "http://localhost/x", "-e", "job.completed"), 1, "Webhook URL cannot point to localhost"
    )


def test_monitoring(cli: Call) -> None:
    said(cli("ping"), "OK")
    assert json.loads(cli("ping", "--json").out)["data"]["pong"] is True
    for command in ("stats", "health"):
        lines = cli(command).out.splitlines()
        assert (lines[0], lines[1], lines[2].split()[0]) == ("Server Statistics:", "", "Waiting:")
    assert "# TYPE bunqueue_jobs_waiting gauge" in cli("metrics").out


# -- refusals ---------------------------------------------------------------------------------------------------------

_STATES, _EVENTS = ", ".join(STATES), ", ".join(WEBHOOK_EVENTS)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("push", "Missing required argument: queue"),
        ("push q", "Missing required argument: data"),
        ("push q nonsense", "Invalid JSON for data: nonsense"),
        ("push q NaN", "Invalid JSON for data: NaN"),
        ("push q {} -P abc", "Invalid number for priority: abc"),
        ("push q {} -P 9007199254740992", "Invalid number for priority: 9007199254740992"),
        ("push q {} -P -3 -d -1", "delay must be >= 0"),
        ("push q {} --max-attempts=0", "max-attempts must be >= 1"),
        ("push q {} --timeout 0", "timeout must be > 0"),
        ("push q {} --priority", "--priority requires a value"),
        ("pull q -t abc", "Invalid number for timeout: abc"),
        ("job get", "Missing required argument: id"),
        ("job progress 1 101", "Progress must be a number between 0 and 100"),
        ("job progress 1 1.5", "Invalid number for progress: 1.5"),
        ("job delay 1 -3", "Delay must be a positive number in milliseconds"),
        ("job log 1 x -l debug", "Invalid log level: debug. Must be info, warn, or error"),
        ("job wait 1 -t -5", "Invalid timeout: -5. Must be >= 0 ms"),
        ("queue jobs q -s odd", f"Invalid state: odd. Must be one of: {_STATES}"),
        ("queue jobs q -l 0", "limit must be > 0"),
        ("queue jobs q -o -1", "offset must be >= 0"),
        ("queue clean q", "--grace is required for clean command (time in milliseconds)"),
        ("queue clean q -g -1", "grace must be >= 0"),
        ("rate-limit set q 0", "Limit must be a positive number (jobs per second)"),
        ("concurrency set q -1", "Limit must be a positive number (max concurrent jobs)"),
        ("cron add c", "--queue (-q) is required"),
        ("cron add c -q q", "--data (-d) is required (JSON string)"),
        ("cron add c -q q -d {}", "Either --schedule (-s) or --every (-e) is required"),
        ("cron add c -q q -d {} -e 0", "Invalid every: 0. Must be a positive interval in ms"),
        ("cron add c -q q -d {} -e 1 --max-limit -1", "Invalid max-limit: -1. Must be >= 0 (0 = unlimited)"),
        ("worker register w", "--queues (-q) is required (comma-separated queue names)"),
        ("worker register w -q ,", "At least one queue must be specified"),
        ("webhook add https://x.y", f"--events (-e) is required (comma-separated). Valid events: {_EVENTS}"),
        ("webhook add https://x.y -e ,", "At least one event must be specified"),
        ("webhook add https://x.y -e odd", f"Invalid event: odd. Valid events: {_EVENTS}"),
        ("webhook add ftp://x.y -e job.failed", "Webhook URL must use http or https protocol: ftp://x.y"),
        ("webhook add nonsense -e job.failed", "Invalid URL: nonsense"),
        ("dlq", "Missing subcommand. Use: list, retry, purge"),
        ("dlq odd", "Unknown dlq subcommand: odd. Use: list, retry, purge"),
        ("rate-limit", "Missing subcommand for rate-limit. Use: set, clear"),
    ],
)
def test_wrong_arguments_contact_nobody(bunqueue: Call, line: str, text: str) -> None:
    refused(bunqueue("--port", "1", *line.split()), 2, text)


def test_a_blank_id_is_none(bunqueue: Call) -> None:
    refused(bunqueue("job", "get", "  "), 2, "Invalid ID for id:   ")


def test_refusals_of_the_server(cli: Call) -> None:
    refused(cli("push", "bad/name", "{}"), 1, "Queue name contains invalid characters")
    refused(cli("pull", "q", "-t", "99999"), 1, "timeout must be at most 60000")
    refused(cli("ack", "nobody"), 1, "Job not found or not in processing state: nobody")
    refused(
        cli("cron", "add", "c", "-q", "q", "-d", "{}", "-s", "bad"),
        1,
        "Invalid cron expression: Cron expression must have 5 fields, or 6 fields with leading seconds",
    )


# -- connections ------------------------------------------------------------------------------------------------------


def test_tokens(cli: Call) -> None:
    refused(cli("ping", "--token", "wrong"), 1, "Authentication failed: Invalid token")
    said(cli("--token=secret", "ping"), "OK")


def test_a_token_that_is_needed(bunqueue: Call, server: ServerProcess) -> None:
    port = str(server.port)
    refused(bunqueue("ping", "-p", port, "-H", "127.0.0.1"), 1, "Not authenticated")
    outcome = bunqueue("ping", "-p", port, "-H", "127.0.0.1", "--token=")
    assert outcome.err.splitlines()[0] == "Warning: --token= requires a value. Token not set."


def test_nobody_listens(bunqueue: Call) -> None:
    outcome = bunqueue("ping", "-p", "1", "-H", "127.0.0.1")
    refused(outcome, 1, "Failed to connect to 127.0.0.1:1: Connection refused")


def test_a_missing_authority(bunqueue: Call) -> None:
    refused(bunqueue("ping", "--tls-ca", "none.pem"), 1, "ENOENT: no such file or directory, open 'none.pem'")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "Connection closed"),
        (b"\x00\x00\x00\x01\xc1", "Invalid response from server"),
        (b"\x00\x00\x00\x01\x01", "Invalid response from server"),
        (
            b"\x15\x03\x03\x00\x02\x02\x46",
            "Frame too large: 352518912 bytes exceeds maximum 67108864 "
            "(is the server running with TLS? try --tls, --tls-ca or --tls-no-verify)",
        ),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "Frame too large: 1213486160 bytes exceeds maximum 67108864 "
            "(is that the server's HTTP port? --port takes its TCP port)",
        ),
        (b"\xff\xff\xff\xff", "Frame too large: 4294967295 bytes exceeds maximum 67108864"),
    ],
)
def test_answers_that_are_none(bunqueue: Call, answer: bytes, text: str) -> None:
    with _stub(lambda sock: sock.sendall(answer)) as port:
        refused(bunqueue("ping", "-H", "127.0.0.1", "-p", str(port)), 1, text)


# -- version, doctor, healthcheck -------------------------------------------------------------------------------------


def test_version_asks_over_tcp_where_http_is_elsewhere(cli: Call, server: ServerProcess) -> None:
    said(cli("version"), f"Client: bunqueue v{__version__}\nServer: bunqueue v{__version__}")
    found = json.loads(cli("version", "--json", "--http-port", str(server.http_port)).out)["server"]
    assert found == {"endpoint": f"127.0.0.1:{server.http_port}", "reachable": True, "version": __version__}


def test_doctor_of_a_healthy_server(cli: Call, server: ServerProcess) -> None:
    cli("dlq", "purge", "sick")
    port = str(server.http_port)
    outcome = cli("doctor", "--http-port", port)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[:8] == [
        "",
        "bunqueue doctor",
        "",
        "Client",
        f"  ✓ Version: {__version__}",
        "",
        "Server",
        f"  ✓ Reachable at 127.0.0.1:{port}",
    ]
    assert lines[-2:] == ["All checks passed.", ""]
    document = json.loads(cli("doctor", "--json", "--http-port", port).out)
    assert (document["ok"], document["issues"], document["fatal"], document["exitCode"]) == (True, 0, False, 0)


def test_doctor_points_out_dead_letters(cli: Call, server: ServerProcess) -> None:
    cli("push", "sick", "{}", "--job-id", "sick-1")
    cli("job", "discard", "sick-1")
    outcome = cli("doctor", "--http-port", str(server.http_port))
    assert outcome.code == 1
    assert "  ! DLQ: 1 (dead-letter jobs need attention)" in outcome.out.splitlines()
    assert outcome.out.splitlines()[-2] == "1 issue found."
    cli("dlq", "purge", "sick")


def test_doctor_without_a_server(bunqueue: Call) -> None:
    outcome = bunqueue("doctor", "-H", "127.0.0.1", "-p", "1")
    assert outcome.code == 1
    assert "  ✗ Not reachable at 127.0.0.1:2\n  Connection refused\n" in outcome.out
    assert "Start the server or use --port to specify the TCP port." in outcome.out
    document = json.loads(bunqueue("doctor", "-H", "127.0.0.1", "-p", "1", "--json").out)
    assert (document["reachable"], document["fatal"], document["exitCode"]) == (False, True, 1)


def test_doctor_of_a_server_whose_http_is_elsewhere(cli: Call, server: ServerProcess) -> None:
    outcome = cli("doctor", "--http-port", "1")
    assert f"A server of version {__version__} answers on TCP port {server.port}." in outcome.out
    assert outcome.code == 1


def test_healthcheck(bunqueue: Call, server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    said(bunqueue("healthcheck", f"http://127.0.0.1:{server.http_port}/health"), "healthy")
    monkeypatch.setenv("HTTP_PORT", str(server.http_port))
    said(bunqueue("healthcheck"), "healthy")
    for arguments in (
        ["http://127.0.0.1:1/health"],
        [f"http://127.0.0.1:{server.http_port}/live"],
        ["ftp://127.0.0.1/health"],
        ["file:///etc/hostname"],
        ["http://a/", "http://b/"],
    ):
        outcome = bunqueue("healthcheck", *arguments)
        assert (outcome.code, outcome.out, outcome.err) == (1, "", "Health check failed\n")
    monkeypatch.setenv("HTTP_PORT", "abc")
    assert bunqueue("healthcheck").err.startswith('Health check failed: Invalid HTTP_PORT: "abc" (')


class _stub:
    """Listens on a free port and plays ``answer`` to the first connection after its first bytes."""

    def __init__(self, answer: Callable[[socket.socket], Any]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._listener.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
        self._listener.close()

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        with sock:
            sock.recv(65536)
            self._answer(sock)


def test_the_help_of_a_verb_names_its_options(bunqueue: Call, tmp_path: Path) -> None:
    assert "-P, --priority N" in bunqueue("push", "--help").out
    assert list(tmp_path.iterdir()) == []
