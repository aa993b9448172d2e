"""Job input: bounds, texts, order of checks, and what becomes of accepted values."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest

from bunqueue_core.model.errors import ValidationError
from bunqueue_core.model.job import DEFAULT_OPTIONS, KEEP, REMOVE, Retention
from bunqueue_core.model.options import MAX_KEY_CHARACTERS, OPTION_NAMES, JobReader, LateValidationError
from bunqueue_core.model.payload import NULL, decode

NAN, INF = math.nan, math.inf


def refusal(raw: dict[str, Any], reader: JobReader | None = None) -> str:
    with pytest.raises(ValidationError) as caught:
        (reader or JobReader()).read({"name": "n", "data": 1, **raw})
    return str(caught.value)


def read(**raw: Any) -> Any:
    return JobReader().read({"name": "n", "data": 1, **raw})


class TestPlainJobs:
    def test_a_request_with_name_and_data_has_the_shared_defaults(self) -> None:
        spec = JobReader().read(
            {"cmd": "PUSH", "queue": "q", "reqId": "1", "name": "mail", "data": {"a": 1}, "banana": 2}
        )
        assert (spec.name, decode(spec.data)) == ("mail", {"a": 1})
        assert spec.options is DEFAULT_OPTIONS
        assert (spec.priority, spec.delay, spec.custom_id, spec.depends_on) == (0, 0, None, ())

    def test_missing_data_is_not_null_data(self) -> None:
        assert JobReader().read({"name": "n"}).data is None
        assert JobReader().read({"name": "n", "data": None}).data == NULL

    @pytest.mark.parametrize("name", ["", None, 5, ["n"], {"a": 1}, True, "n" * 257])
    def test_bad_names(self, name: Any) -> None:
        assert refusal({"name": name}) == "Job name must be a non-empty string of at most 256 characters"

    @pytest.mark.parametrize("name", ["n" * 256, " ", "ünï ✓", "a:b/c"])
    def test_good_names(self, name: str) -> None:
        assert read(name=name).name == name

    def test_a_name_inside_the_data_is_taken_out(self) -> None:
        data = {"name": "legacy", "v": 1}
        spec = JobReader().read({"data": data})
        assert (spec.name, decode(spec.data)) == ("legacy", {"v": 1})
        assert data == {"name": "legacy", "v": 1}

    @pytest.mark.parametrize("data", [{"name": 5}, {"name": None}, ["name"], "name", 5])
    def test_other_data_leaves_the_default_name(self, data: Any) -> None:
        spec = JobReader().read({"data": data})
        assert (spec.name, decode(spec.data)) == ("default", data)

    def test_an_explicit_name_leaves_the_data_alone(self) -> None:
        assert decode(read(data={"name": "inner"}).data) == {"name": "inner"}

    def test_an_empty_name_inside_the_data_is_refused(self) -> None:
        with pytest.raises(ValidationError, match="Job name must be"):
            JobReader().read({"data": {"name": ""}})


class TestData:
    def test_ten_mebibytes_of_json_text_are_the_limit(self) -> None:
        limit = 10 * 1024 * 1024
        assert read(data="x" * (limit - 2)).data is not None
        assert refusal({"data": "x" * (limit - 1)}) == "Job data too large (max 10MB)"

    def test_integers_beyond_32_bits_become_float64_where_exact(self) -> None:
        spec = read(data=[2**53, 2**53 + 1])
        assert spec.data == b"\x92" + msgpack.packb(float(2**53)) + msgpack.packb(2**53 + 1)

    @pytest.mark.parametrize("data", [{"a": 2**70}, {"a": "\ud800"}, object()])
    def test_what_no_client_could_read_is_refused(self, data: Any) -> None:
        assert refusal({"data": data}).startswith("Job data must be JSON serializable")

    def test_cycles_are_refused(self) -> None:
        data: list[Any] = []
        data.append(data)
        assert refusal({"data": data}).startswith("Job data must be JSON serializable")


NUMERIC = [
    ("priority", -1_000_000, 1_000_000),
    ("delay", 0, 31_536_000_000),
    ("timeout", 0, 86_400_000),
    ("maxAttempts", 1, 1000),
    ("backoff", 0, 86_400_000),
    ("ttl", 0, 31_536_000_000),
]


class TestNumbers:
    @pytest.mark.parametrize(("field", "low", "high"), NUMERIC)
    def test_bounds(self, field: str, low: int, high: int) -> None:
        assert refusal({field: low - 1}) == f"{field} must be at least {low}"
        assert refusal({field: high + 1}) == f"{field} must be at most {high}"
        assert refusal({field: float(high + 1)}) == f"{field} must be at most {high}"
        assert refusal({field: 2**70}) == f"{field} must be at most {high}"
        read(**{field: low})
        read(**{field: high})
        read(**{field: float(high)})

    @pytest.mark.parametrize("field", [field for field, _, _ in NUMERIC])
    @pytest.mark.parametrize("value", ["5", True, False, [], [1]])
    def test_nothing_but_numbers(self, field: str, value: Any) -> None:
        assert refusal({field: value}) == f"{field} must be a number"

    @pytest.mark.parametrize("field", [*(field for field, _, _ in NUMERIC), "stallTimeout", "timestamp", "keepLogs"])
    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    def test_only_finite_ones(self, field: str, value: float) -> None:
        assert refusal({field: value}) == f"{field} must be a finite number"

    @pytest.mark.parametrize("field", ["priority", "maxAttempts"])
    def test_integers_only(self, field: str) -> None:
        assert refusal({field: 1.5}) == f"{field} must be an integer"
        read(**{field: 2.0})

    def test_fractional_durations_are_floored_after_the_bounds(self) -> None:
        spec = read(delay=1500.9, ttl=100000.5, timeout=0.5, backoff=0.5, timestamp=1000.7)
        assert (spec.delay, spec.options.ttl_ms, spec.options.timeout_ms, spec.options.backoff_ms, spec.timestamp) == (
            1500,
            100000,
            0,
            0,
            1000,
        )
        assert refusal({"delay": -0.5}) == "delay must be at least 0"

    def test_unbounded_options_still_have_to_fit_an_exact_integer(self) -> None:
        assert refusal({"timestamp": 2**63}) == f"timestamp must be at most {2**53 - 1}"
        assert read(stallTimeout=-5).options.stall_timeout_ms == -5

    def test_null_means_not_given(self) -> None:
        spec = read(**{name: None for name in OPTION_NAMES - {"groupId", "groupMaxSize"}})
        assert spec.options is DEFAULT_OPTIONS
        assert spec.custom_id is None


class TestBackoff:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ({}, "backoff.type must be 'fixed' or 'exponential'"),
            ({"type": "linear", "delay": 5}, "backoff.type must be 'fixed' or 'exponential'"),
            ({"type": "FIXED", "delay": 1}, "backoff.type must be 'fixed' or 'exponential'"),
            ({"type": ["fixed"], "delay": 1}, "backoff.type must be 'fixed' or 'exponential'"),
            ({"type": "fixed"}, "backoff.delay is required"),
            ({"type": "fixed", "delay": "5"}, "backoff.delay must be a number"),
            ({"type": "fixed", "delay": NAN}, "backoff.delay must be a finite number"),
            ({"type": "fixed", "delay": -1}, "backoff.delay must be at least 0"),
            ({"type": "fixed", "delay": 86400001}, "backoff.delay must be at most 86400000"),
            ({"type": "fixed", "delay": 1, "maxDelay": -1}, "backoff.maxDelay must be at least 0"),
        ],
    )
    def test_refused(self, value: Any, text: str) -> None:
        assert refusal({"backoff": value}) == text

    def test_an_object_keeps_type_delay_and_cap(self) -> None:
        options = read(backoff={"type": "exponential", "delay": 250.5, "maxDelay": 4000}).options
        assert (options.backoff_ms, options.backoff) == (250, {"type": "exponential", "delay": 250, "maxDelay": 4000})

    def test_a_plugins_strategy_is_allowed_and_named(self) -> None:
        reader = JobReader(strategies=["fixed", "exponential", "steps"])
        raw = {"name": "n", "backoff": {"type": "steps", "delay": 5}}
        assert reader.read(raw).options.backoff == {"type": "steps", "delay": 5}
        text = refusal({"backoff": {"type": "stairs", "delay": 5}}, reader)
        assert text == "backoff.type must be 'fixed', 'exponential' or 'steps'"


class TestGroups:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (None, "groupId must be a string"),
            (5, "groupId must be a string"),
            (True, "groupId must be a string"),
            ("", "groupId must be a non-empty string"),
            ("g" * 257, "groupId must be at most 256 characters"),
            ("a\0b", "groupId must not contain NUL characters"),
        ],
    )
    def test_group_id(self, value: Any, text: str) -> None:
        assert refusal({"groupId": value}) == text

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (-1, "group.priority must be between 0 and 2097151"),
            (2097152, "group.priority must be between 0 and 2097151"),
            (1.5, "group.priority must be an integer"),
            ("1", "group.priority must be a finite number"),
            (None, "group.priority must be a finite number"),
            (True, "group.priority must be a finite number"),
            (NAN, "group.priority must be a finite number"),
        ],
    )
    def test_priority_in_a_group(self, value: Any, text: str) -> None:
        assert refusal({"groupId": "g", "priority": value}) == text

    @pytest.mark.parametrize("value", [0, -1, 1.5, "3", True, None, NAN, 2**53])
    def test_group_size(self, value: Any) -> None:
        assert refusal({"groupId": "g", "groupMaxSize": value}) == "group.maxSize must be a positive safe integer"

    def test_accepted(self) -> None:
        spec = read(groupId="g" * 256, priority=2097151, groupMaxSize=3.0)
        assert (spec.group_id, spec.priority, spec.group_max_size) == ("g" * 256, 2097151, 3)


class TestRetention:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (True, REMOVE),
            (False, KEEP),
            (None, KEEP),
            (0, KEEP),
            (1, Retention(count=1)),
            (100, Retention(count=100)),
            ({"count": 5}, Retention(count=5)),
            ({"age": 1}, Retention(age_ms=1000)),
            ({"age": 0.5, "count": 2}, Retention(age_ms=500, count=2)),
            ({}, REMOVE),
        ],
    )
    def test_forms(self, value: Any, expected: Retention) -> None:
        options = read(removeOnComplete=value, removeOnFail=value).options
        assert (options.remove_on_complete, options.remove_on_fail) == (expected, expected)

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ({"age": NAN}, "removeOnFail.age must be a finite number"),
            ({"count": -1}, "removeOnFail.count must be at least 0"),
            (INF, "removeOnFail must be a finite number"),
            ("yes", "removeOnFail must be a boolean, a number or an object with age or count"),
        ],
    )
    def test_refused(self, value: Any, text: str) -> None:
        assert refusal({"removeOnFail": value}) == text


class TestIdsAndRelations:
    def test_ids(self) -> None:
        spec = read(
            jobId="a:b", uniqueKey="k", customId="ignored", parentId="p", childrenIds=["c"], tags=["t"], dependsOn=["d"]
        )
        assert (spec.custom_id, spec.unique_key, spec.parent_id) == ("a:b", "k", "p")
        assert (spec.children_ids, spec.tags, spec.depends_on) == (("c",), ("t",), ("d",))
        assert spec.parent_queue is None

    def test_empty_ids_are_not_given(self) -> None:
        spec = read(jobId="", uniqueKey="", parentId="")
        assert (spec.custom_id, spec.unique_key, spec.parent_id) == (None, None, None)

    def test_malformed_ids(self) -> None:
        assert refusal({"jobId": "a\ud800"}) == "custom ID must be well-formed Unicode"
        assert refusal({"jobId": 5}) == "custom ID must be a string"
        assert refusal({"uniqueKey": "x" * (MAX_KEY_CHARACTERS + 1)}) == "uniqueKey must be at most 1024 characters"
        assert refusal({"dependsOn": "abc"}) == "dependsOn must be an array of strings"
        assert refusal({"tags": [1]}) == "tags must be a string"

    def test_a_parent_is_linked_only_when_the_payload_says_so(self) -> None:
        data = {"__parentId": "p", "__parentQueue": "parents"}
        assert read(parentId="p", data=data).parent_queue == "parents"
        assert read(parentId="other", data=data).parent_queue is None
        assert read(parentId="p", data={**data, "__parentQueue": ""}).parent_queue is None
        assert read(data=data).parent_queue is None

    def test_deduplication(self) -> None:
        options = read(uniqueKey="k", dedup={"ttl": 5000, "extend": True, "scope": "unfinished"}).options
        assert (options.dedup_ttl_ms, options.dedup_extend, options.dedup_replace) == (5000, True, False)
        assert options.dedup_scope == "unfinished"
        assert refusal({"dedup": {"scope": "all"}}) == "dedup.scope must be 'waiting', 'unfinished' or 'window'"
        assert refusal({"dedup": {"ttl": NAN}}) == "dedup.ttl must be a finite number"


class TestOrder:
    def test_the_first_violation_is_reported(self) -> None:
        bad: dict[str, Any] = {
            "data": 2**70,
            "groupId": "",
            "priority": "x",
            "delay": -1,
            "timeout": -1,
            "maxAttempts": 0,
            "backoff": -1,
            "ttl": -1,
            "name": "",
        }
        order = []
        while bad:
            first = refusal({"data": 1, **bad}).partition(" must")[0]
            order.append(first)
            bad.pop({"Job data": "data", "Job name": "name"}.get(first, first))
        expected = "Job data,groupId,priority,delay,timeout,maxAttempts,backoff,ttl,Job name"
        assert order == expected.split(",")

    def test_a_violation_after_the_dependencies_names_them(self) -> None:
        for late in ({"name": ""}, {"groupMaxSize": 0}, {"repeat": {}}, {"jobId": 5}):
            with pytest.raises(LateValidationError) as caught:
                JobReader().read({"data": 1, "name": "n", "dependsOn": ["a", "b"], **late})
            assert caught.value.depends_on == ("a", "b")

    def test_in_a_batch_the_name_comes_first(self) -> None:
        with pytest.raises(ValidationError, match=r"^jobs\[1\]: Job name"):
            JobReader().read_batch([{"name": "n"}, {"name": "", "data": 2**70, "groupId": ""}])


class TestBatch:
    def test_elements_use_custom_id(self) -> None:
        first, second = JobReader().read_batch([{"name": "n", "customId": "c"}, {"name": "n", "jobId": "j"}])
        assert (first.custom_id, second.custom_id) == ("c", None)

    def test_defaults_and_envelope(self) -> None:
        specs = JobReader().read_batch([{"data": {"v": 1}}, {"data": {"name": "legacy", "v": 2}}, {}])
        assert [spec.name for spec in specs] == ["default", "legacy", "default"]
        assert specs[2].data is None

    @pytest.mark.parametrize("element", [None, 5, "x", []])
    def test_elements_are_objects(self, element: Any) -> None:
        with pytest.raises(ValidationError, match=r"^jobs\[0\]: job input must be an object"):
            JobReader().read_batch([element])


class TestRepeat:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ({}, "repeat requires exactly one of every or pattern"),
            ({"every": 1000, "pattern": "* * * * *"}, "repeat requires exactly one of every or pattern"),
            ({"pattern": "  "}, "repeat requires exactly one of every or pattern"),
            ({"every": 0}, "repeat.every must be a positive finite number"),
            ({"every": -5}, "repeat.every must be a positive finite number"),
            ({"every": INF}, "repeat.every must be a positive finite number"),
            ({"every": 1000, "startDate": NAN}, "repeat.startDate must be a finite timestamp"),
            ({"every": 1000, "endDate": INF}, "repeat.endDate must be a finite timestamp"),
            (5, "repeat must be an object"),
        ],
    )
    def test_refused(self, value: Any, text: str) -> None:
        assert refusal({"repeat": value}) == text

    def test_relations_and_ids_exclude_it(self) -> None:
        repeat = {"every": 1000}
        assert refusal({"repeat": repeat, "jobId": "x"}).startswith("repeat jobs cannot use JobOptions.jobId")
        assert refusal({"repeat": repeat, "parentId": "p"}).startswith("repeat jobs cannot participate")

    def test_normalised(self) -> None:
        repeat = read(repeat={"every": 60000.9, "limit": 3, "immediately": True, "banana": 1}).options.repeat
        assert repeat == {"every": 60000, "limit": 3, "count": 0, "immediately": True}

    def test_the_pattern_is_checked_by_the_schedules(self) -> None:
        def check(pattern: str, zone: str | None) -> None:
            raise ValidationError(f"{pattern} in {zone}")

        reader = JobReader(check_pattern=check)
        text = refusal({"repeat": {"pattern": "never", "tz": "Europe/Rome"}}, reader)
        assert text == "Invalid repeat pattern: never in Europe/Rome"


def test_equal_options_share_one_instance() -> None:
    reader = JobReader()
    raw = {"name": "n", "maxAttempts": 5, "backoff": {"type": "fixed", "delay": 10}, "removeOnComplete": {"count": 2}}
    assert reader.read(raw).options is reader.read(dict(raw)).options
    assert reader.read({**raw, "lifo": True}).options is not reader.read(raw).options


def test_options_that_only_look_equal_do_not() -> None:
    reader = JobReader()
    assert reader.read({"removeOnComplete": 1}).options.remove_on_complete == Retention(count=1)
    assert reader.read({"removeOnComplete": True}).options.remove_on_complete == REMOVE
    with pytest.raises(ValidationError, match="maxAttempts must be a number"):
        reader.read({"maxAttempts": True})
