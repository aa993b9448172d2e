"""Declaring commands: names, checks, defaults, and what the table knows about them."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any

import pytest
from fixtures.scripted_broker import ScriptedBroker, services_of

from bunqueue_core.commands import COMMANDS
from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import (
    ABSENT,
    AnyCheck,
    AnyQueue,
    Flag,
    FreeText,
    JobId,
    JobIds,
    ListCheck,
    LiteralFlag,
    Map,
    NumberCheck,
    QueueName,
    Reply,
    Text,
    Tokens,
    Value,
    WholeRequest,
    collect,
    command,
)
from bunqueue_core.model.errors import ValidationError


def a_session() -> Session:
    return Session(services_of(ScriptedBroker()), "s")


@command("Everything", returns={"all": "map"}, waits=True)
def everything(
    session: Session,
    queue: QueueName,
    id: JobId,
    max_jobs: Annotated[int | None, NumberCheck(0, 10)] = None,
    note: FreeText | None = None,
    exact: LiteralFlag = False,
    loose: Flag = True,
    value: Value = ABSENT,
    type_: Text = "",
) -> Reply:
    """Take everything.

    And say so.
    """
    return {"all": [queue, id, max_jobs, note, exact, loose, value, type_]}


def run(request: Mapping[str, Any]) -> Any:
    reply = everything.run(a_session(), request)
    assert isinstance(reply, dict)
    return reply["all"]


def refusal(**request: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        run({"queue": "q", "id": "x", **request})
    return str(caught.value)


def test_a_declaration_is_described() -> None:
    assert (everything.name, everything.summary, everything.waits, everything.open) == (
        "Everything",
        "Take everything.",
        True,
        False,
    )
    assert everything.description.endswith("And say so.")
    assert [field.name for field in everything.fields] == [
        "queue",
        "id",
        "maxJobs",
        "note",
        "exact",
        "loose",
        "value",
        "type",
    ]
    assert [field.required for field in everything.fields] == [True, True, *[False] * 6]
    assert everything.fields[2].kind == "number 0..10"
    assert everything.returns == {"all": "map"}


def test_defaults_and_names_on_the_wire() -> None:
    assert run({"queue": "q", "id": "x"}) == ["q", "x", None, None, False, True, ABSENT, ""]
    assert run(
        {"queue": "q", "id": "x", "maxJobs": 3.9, "note": "\ud800", "exact": 1, "loose": 0, "value": None, "type": "t"}
    ) == ["q", "x", 3, "?", False, False, None, "t"]


def test_null_is_absence_except_where_any_value_counts() -> None:
    names = ("maxJobs", "note", "exact", "loose", "type")
    assert run({"queue": "q", "id": "x", "value": 5, **dict.fromkeys(names)}) == [
        "q",
        "x",
        None,
        None,
        False,
        True,
        5,
        "",
    ]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"queue": None}, "Queue name is required"),
        ({"queue": ""}, "Queue name is required"),
        ({"queue": 5}, "Queue name must be a string"),
        ({"queue": "x" * 257}, "Queue name too long (max 256 characters)"),
        ({"queue": "a b"}, "Queue name contains invalid characters"),
        ({"id": None}, "Job id is required"),
        ({"id": ["x"]}, "id must be a string"),
        ({"id": "a\0"}, "id must not contain NUL characters"),
        ({"id": "\ud800"}, "id must be well-formed Unicode"),
        ({"maxJobs": "3"}, "maxJobs must be a number"),
        ({"maxJobs": float("nan")}, "maxJobs must be a finite number"),
        ({"maxJobs": -1}, "maxJobs must be at least 0"),
        ({"maxJobs": 11}, "maxJobs must be at most 10"),
        ({"note": 5}, "note must be a string"),
        ({"loose": "yes"}, "loose must be a boolean"),
        ({"queue": "a b", "maxJobs": -1}, "Queue name contains invalid characters"),
    ],
)
def test_refusals(request_: dict[str, Any], text: str) -> None:
    assert refusal(**request_) == text


def test_lists_and_maps() -> None:
    @command("Lists")
    def lists(
        session: Session,
        ids: JobIds,
        config: Map,
        tokens: Tokens | None = None,
        anything: Annotated[list[Any] | None, ListCheck(AnyCheck())] = None,
    ) -> Reply:
        return {"all": [ids, config, tokens, anything]}

    session = a_session()
    assert lists.run(session, {"ids": ["a"], "config": {}, "tokens": [None, "t"], "anything": [1, None]}) == {
        "all": [["a"], {}, [None, "t"], [1, None]]
    }
    for request, text in (
        ({}, "ids is required"),
        ({"ids": "a"}, "ids must be an array"),
        ({"ids": [5]}, r"ids\[0\] must be a string"),
        ({"ids": []}, "config is required"),
        ({"ids": [], "config": []}, "config must be an object"),
        ({"ids": [], "config": {}, "tokens": [5]}, r"tokens\[0\] must be a string"),
    ):
        with pytest.raises(ValidationError, match=f"^{text}$"):
            lists.run(session, request)


def test_fractions() -> None:
    @command("Fractions")
    def fractions(
        session: Session,
        up: Annotated[int, NumberCheck(whole="ceil")] = 0,
        kept: Annotated[float, NumberCheck(whole="keep")] = 0,
        none: Annotated[int, NumberCheck(whole="refuse")] = 0,
    ) -> Reply:
        return {"all": [up, kept, none]}

    assert fractions.run(a_session(), {"up": 1.2, "kept": 1.5, "none": 2.0}) == {"all": [2, 1.5, 2]}
    with pytest.raises(ValidationError, match="none must be an integer"):
        fractions.run(a_session(), {"none": 1.5})


def test_a_command_may_take_the_whole_request() -> None:
    @command("Whole")
    def whole(session: Session, queue: AnyQueue, request: Annotated[Mapping[str, Any], WholeRequest()]) -> Reply:
        return {"all": [queue, request]}

    assert whole.job_input
    assert [field.name for field in whole.fields] == ["queue"]
    assert whole.run(a_session(), {"queue": "a b", "x": 1}) == {"all": ["a b", {"queue": "a b", "x": 1}]}


def test_a_parameter_without_a_check_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="parameter queue has no check"):

        @command("Bad")
        def bad(session: Session, queue: str) -> Reply:
            return None


def test_a_name_is_declared_once() -> None:
    one, two = types.ModuleType("one"), types.ModuleType("two")
    vars(one)["a"] = everything
    vars(two)["b"] = everything
    assert list(collect([one, two])) == ["Everything"]
    vars(two)["c"] = command("Everything")(lambda session: None)
    with pytest.raises(ValueError, match="command Everything is declared twice"):
        collect([one, two])


def test_every_command_describes_itself() -> None:
    for name, found in COMMANDS.items():
        assert found.name == name
        assert found.summary.endswith("."), name
        assert all(field.kind for field in found.fields), name


def test_only_authentication_needs_no_authentication() -> None:
    assert [name for name, found in COMMANDS.items() if found.open] == ["Auth"]


def test_the_commands_that_wait() -> None:
    assert {name for name, found in COMMANDS.items() if found.waits} == {"PULL", "PULLB", "WaitJob"}
