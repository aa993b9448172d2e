"""Requests for the fuzz test: sensible ones for every command, mutations of them, and mutations of the bytes of a frame.

Everything is drawn from one seeded source, so that a seed repeats a run as far as the server's own clock and ids allow.
"""

from __future__ import annotations

import copy
import datetime
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgpack

from bunqueue_core.commands import COMMANDS

#: Stand for what no Python value packs to; :func:`pack` puts the bytes in their place. Their length fits a one-byte string head.
_BAD_TEXT: Final = "@@bad-utf-8@@"
_BAD_TEXT_BYTES: Final = b"\xff\xfe\xc0\x80\xed\xa0\x80\xf5\x90\x80\x80a\x80"
_DEEP_LISTS: Final = "@@deep-lists@@"
_DEEP_MAPS: Final = "@@deep-maps@@"
_VERY_DEEP: Final = "@@very-deep@@"
_RESERVED: Final = "@@reserved@@"
_HUGE: Final = "@@huge@@"
_ENDLESS: Final = "@@endless@@"

#: Levels of nesting: beyond what payloads may have, and beyond what any stack could hold.
_DEEP: Final = 600
_VERY_DEEP_LEVELS: Final = 200_000

#: Longest wait that a request on a shared connection asks for, ms.
SHORT_WAIT_MS: Final = 15

QUEUES: Final = ("a", "b", "c.d", "e:f", "G-1", "q_9")
CUSTOM_IDS: Final = tuple(f"custom-{n}" for n in range(12))
KEYS: Final = ("k0", "k1", "k2")
GROUPS: Final = ("g0", "g1", "g2")
STATES: Final = (
    "waiting",
    "prioritized",
    "delayed",
    "active",
    "completed",
    "failed",
    "waiting-children",
    "paused",
)

#: Commands that take much away, or stop what comes: all but a few of them go to one queue, so that the others hold jobs.
_SWEEPING: Final = frozenset(
    ("Obliterate", "Drain", "PurgeDlq", "Clean", "Pause", "RateLimit", "SetConcurrency", "RetryDlq", "RetryCompleted")
)

#: Commands whose ``id`` is the name of something other than a job.
_OTHER_IDS: Final = ("SetWebhookEnabled", "Heartbeat")

#: Values that are wrong nearly everywhere, or right where nobody expects them.
ODD_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    -0.0,
    0.5,
    -0.5,
    1e-300,
    1e308,
    -1e308,
    5e-324,
    float("nan"),
    float("inf"),
    float("-inf"),
    255,
    256,
    1000,
    1001,
    60_000,
    60_001,
    1_000_001,
    2**31 - 1,
    2**31,
    -(2**31) - 1,
    2**32,
    2**53 - 1,
    2**53,
    2**53 + 1,
    -(2**53) - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**63),
    float(2**63),
    31_536_000_001,
    8.64e15,
    8.64e15 + 1,
    "",
    " ",
    "0",
    "12",
    "1e999",
    "NaN",
    "true",
    "\0",
    "a\0b",
    "\ud800",
    "x\udfff",
    "é" * 200,
    "\U0001f407",
    "x" * 256,
    "x" * 257,
    "x" * 1024,
    "x" * 1025,
    "x" * 20_000,
    "'; DROP TABLE jobs; --",
    "../../../etc/passwd",
    "__proto__",
    "constructor",
    "unknown",
    "00000000-0000-7000-8000-000000000000",
    b"",
    b"\xff\x00bytes",
    [],
    {},
    [None],
    [[]],
    ["a", 1, None, {}],
    [1] * 3_000,
    ["a"] * 1_200,
    {"": ""},
    {"__proto__": {"x": 1}, "constructor": 1},
    {7: 2, None: 3, True: 4, 2.5: 5, b"k": 6},
    {"a": {"b": {"c": [1, {"d": None}]}}},
    {f"k{n}": n for n in range(300)},
    msgpack.ExtType(0, b"\0"),
    msgpack.ExtType(5, b"?"),
    datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC),
    _BAD_TEXT,
    _DEEP_LISTS,
    _DEEP_MAPS,
    _VERY_DEEP,
    _RESERVED,
    _HUGE,
    _ENDLESS,
)


def pack(value: Any) -> bytes:
    """Encode a request, lone surrogates and the stand-ins of this module included."""
    body: bytes = msgpack.packb(value, unicode_errors="surrogatepass", datetime=True)
    for word, bytes_ in (
        (_DEEP_LISTS, b"\x91" * _DEEP + b"\xc0"),
        (_DEEP_MAPS, b"\x81\xa1a" * _DEEP + b"\xc0"),
        (_VERY_DEEP, b"\x91" * _VERY_DEEP_LEVELS + b"\xc0"),
        (_RESERVED, b"\xc1"),
    ):
        if word.encode() in body:
            body = body.replace(msgpack.packb(word), bytes_)
    return body.replace(_BAD_TEXT.encode(), _BAD_TEXT_BYTES)


def pack_json(value: Any) -> bytes:
    """Encode a request as JSON, with what only JSON can say in place of the stand-ins: numbers without bounds, NaN, bad UTF-8."""
    text = json.dumps(value, default=str, skipkeys=True).encode()
    for word, bytes_ in (
        (_DEEP_LISTS, b"[" * _DEEP + b"]" * _DEEP),
        (_DEEP_MAPS, b'{"a":' * _DEEP + b"1" + b"}" * _DEEP),
        (_VERY_DEEP, b"[" * _VERY_DEEP_LEVELS),
        (_RESERVED, b"'"),
        (_HUGE, b"1" + b"0" * 400),
        (_ENDLESS, b"-1e999"),
    ):
        text = text.replace(b'"' + word.encode() + b'"', bytes_)
    return text.replace(_BAD_TEXT.encode(), _BAD_TEXT_BYTES)


class Fuzzer:
    """Draws requests. What answers tell it (ids, tokens, names) goes into later ones.

    Args:
        seed: of everything that is drawn.
        receiver: a URL that webhooks may be sent to.
    """

    def __init__(self, seed: int | str, receiver: str) -> None:
        self.random = random.Random(seed)
        self.receiver = receiver
        self.ids: list[str] = ["unknown-job"]
        self.tokens: dict[str, str] = {}
        self.active: list[str] = []  #: ids of jobs that were delivered with a token, the latest last
        self.webhooks: list[str] = ["unknown-hook"]
        self.workers: list[str] = ["unknown-worker"]
        self._fields: Mapping[str, Callable[[], Any]] = {
            "queue": lambda: self.pick(QUEUES),
            "id": self.id,
            "jobId": self.id,
            "childId": self.id,
            "parentId": self.id,
            "ids": lambda: [self.id() for _ in range(self.random.randrange(4))],
            "token": lambda: "token",
            "tokens": lambda: ["token", None],
            "durations": lambda: [1_000, None],
            "customId": lambda: self.pick(CUSTOM_IDS),
            "jobs": lambda: [self.job("customId") for _ in range(self.random.randrange(5))],
            "owner": lambda: "worker-1",
            "timeout": lambda: self.pick((0, 5, SHORT_WAIT_MS)),
            "lockTtl": lambda: self.pick((0, 20, 30_000)),
            "detach": self.flag,
            "group": lambda: self.pick(
                ({}, {"concurrency": 2, "limit": {"max": 5, "duration": 100}}, {"affinity": self.pick((None, "g0"))})
            ),
            "count": lambda: self.pick((1, 3, 50)),
            "result": self.data,
            "results": lambda: [self.data()],
            "removeOnComplete": self.flag,
            "removeOnCompletes": lambda: [self.flag()],
            "removeOnFail": self.flag,
            "error": lambda: self.pick(("boom", "", None)),
            "stack": lambda: ["  at a", "", "at b"],
            "unrecoverable": self.flag,
            "duration": lambda: self.pick((1, 50, 10_000)),
            "progress": lambda: self.pick((0, 42.5, 100)),
            "message": lambda: self.pick(("half way", None)),
            "level": lambda: self.pick(("info", "warn", "error")),
            "state": lambda: self.pick((*STATES, list(STATES[:3]), None)),
            "offset": lambda: self.pick((0, 2)),
            "limit": lambda: self.pick((1, 10, 1000)),
            "asc": self.flag,
            "data": self.data,
            "priority": lambda: self.pick((0, 1, 10, -3)),
            "lifo": self.flag,
            "delay": lambda: self.pick((0, 1, 500)),
            "deduplicationId": lambda: self.pick(KEYS),
            "start": lambda: self.pick((0, 1, -5)),
            "end": lambda: self.pick((-1, 5, 100)),
            "keepLogs": lambda: self.pick((0, 2)),
            "grace": lambda: self.pick((0, 10, 100_000)),
            "filter": lambda: {"reason": self.pick(("max_attempts_exceeded", "stalled", "ttl_expired"))},
            "timestamp": lambda: 1_700_000_000_000,
            "config": lambda: self.pick(
                (
                    {"autoRetry": self.flag(), "autoRetryInterval": 60_000, "maxEntries": 100},
                    {"enabled": self.flag(), "stallInterval": 5_000, "maxStalls": 3, "gracePeriod": 100},
                )
            ),
            "ttl": lambda: self.pick((10, 60_000)),
            "maxJobs": lambda: 1,
            "groupId": lambda: self.pick(GROUPS),
            "max": lambda: self.pick((1, 10)),
            "concurrency": lambda: self.pick((1, 5)),
            "name": lambda: self.pick(("n", "cron-1", "cron-2")),
            "url": lambda: self.receiver,
            "events": lambda: [self.pick(("job.pushed", "job.started", "job.completed", "job.failed"))],
            "secret": lambda: "s",
            "webhookId": lambda: self.pick(self.webhooks[-3:]),
            "enabled": self.flag,
            "type": lambda: self.pick(("completed", "failed")),
            "queues": lambda: [self.pick(QUEUES)],
            "workerId": lambda: self.pick(self.workers[-3:]),
            "hostname": lambda: "host",
            "pid": lambda: 123,
            "startedAt": lambda: 1_700_000_000_000,
            "activeJobs": lambda: 1,
            "processed": lambda: 2,
            "failed": lambda: 0,
            "includeJobs": self.flag,
            "jobsLimit": lambda: 5,
            "maxLength": lambda: 3,
        }

    def pick(self, items: Any) -> Any:
        """One of ``items``."""
        return items[self.random.randrange(len(items))]

    def flag(self) -> bool:
        """A boolean."""
        return self.random.random() < 0.5

    def id(self) -> str:
        """An id, most of the time one of a job that was admitted or delivered lately."""
        choice = self.random.random()
        if choice < 0.15:
            return str(self.pick(CUSTOM_IDS))
        if choice < 0.55 and self.active:
            return str(self.pick(self.active[-8:]))
        recent = self.ids[-40:] if self.random.random() < 0.8 else self.ids
        return str(self.pick(recent))

    def data(self) -> Any:
        """A payload."""
        return self.pick((None, 1, "text", {"a": [1, {"b": None}]}, [], {"name": "n", "data": {}}))

    def odd(self) -> Any:
        """A value out of place; the costly ones are rare."""
        value = self.pick(ODD_VALUES)
        if value in (_VERY_DEEP, _DEEP_LISTS, _DEEP_MAPS) and self.random.random() < 0.7:
            return self.odd()
        return copy.deepcopy(value)

    # -- requests -----------------------------------------------------------------------------------------------------

    def job(self, id_field: str) -> dict[str, Any]:
        """Input of a job, as of PUSH; its custom id stands in ``id_field``."""
        job: dict[str, Any] = {"name": "n", "data": self.data()}
        options: dict[str, Callable[[], Any]] = {
            id_field: lambda: self.pick(CUSTOM_IDS),
            "priority": lambda: self.pick((0, 1, 7, -2)),
            "delay": lambda: self.pick((0, 1, 100, 3_600_000)),
            "timeout": lambda: self.pick((0, 1, 10_000)),
            "maxAttempts": lambda: self.pick((1, 2, 5)),
            "backoff": lambda: self.pick(
                (0, 10, {"type": "fixed", "delay": 5}, {"type": "exponential", "delay": 1, "maxDelay": 20})
            ),
            "ttl": lambda: self.pick((0, 5, 100_000)),
            "lifo": self.flag,
            "uniqueKey": lambda: self.pick(KEYS),
            "dedup": lambda: {"ttl": 50, "extend": self.flag(), "replace": self.flag()},
            "debounceId": lambda: self.pick(KEYS),
            "debounceTtl": lambda: 10,
            "dependsOn": lambda: [self.id()],
            "childrenIds": lambda: [self.id()],
            "parentId": self.id,
            "tags": lambda: ["x", "y"],
            "groupId": lambda: self.pick(GROUPS),
            "groupMaxSize": lambda: 20,
            "removeOnComplete": lambda: self.pick((True, False, 2, {"count": 1}, {"age": 1})),
            "removeOnFail": lambda: self.pick((True, False, 2)),
            "stallTimeout": lambda: 1_000,
            "stackTraceLimit": lambda: 3,
            "keepLogs": lambda: 2,
            "sizeLimit": lambda: 10_000,
            "durable": self.flag,
            "repeat": lambda: self.pick(({"every": 1_000, "limit": 2}, {"pattern": "*/5 * * * *", "tz": "UTC"})),
            "timestamp": lambda: 1_700_000_000_000,
            "failParentOnFailure": self.flag,
            "continueParentOnFailure": self.flag,
            "ignoreDependencyOnFailure": self.flag,
            "removeDependencyOnFailure": self.flag,
        }
        for name in self.random.sample(sorted(options), self.pick((0, 0, 1, 2, 4))):
            job[name] = options[name]()
        return job

    def flow(self) -> list[dict[str, Any]]:
        """A valid flow: a parent and its children."""
        queue = self.pick(QUEUES)
        stem = f"f{self.random.randrange(10**9)}"
        children = [f"{stem}-{n}" for n in range(self.random.randrange(1, 4))]
        parent = {"__childrenIds": children}
        members: list[dict[str, Any]] = [
            {
                "id": child,
                "queue": self.pick(QUEUES),
                "input": {
                    "customId": child,
                    "name": "child",
                    "data": {"__parentId": stem, "__parentQueue": queue},
                    "parentId": stem,
                },
            }
            for child in children
        ]
        input_ = {"customId": stem, "name": "p", "data": parent, "childrenIds": children, "dependsOn": children}
        members.append({"id": stem, "queue": queue, "input": input_})
        return members

    def request(self, name: str) -> dict[str, Any]:
        """A sensible request of the command ``name``."""
        request: dict[str, Any] = {"cmd": name, "reqId": f"r{self.random.randrange(10**9)}"}
        for field in COMMANDS[name].fields:
            if field.required or field.name in ("id", "webhookId", "workerId") or self.random.random() < 0.6:
                request[field.name] = self._fields[field.name]()
        if name == "PUSH":
            request.update(self.job("jobId"))
        elif name == "PUSHF":
            request["jobs"] = self.flow()
        elif name == "Cron":
            request.update(self._cron())
        elif name == "Metrics" and self.flag():
            request = {"cmd": name, "reqId": request["reqId"]}
        elif name in ("CronGet", "CronDelete"):
            request["name"] = self.pick(("cron-1", "cron-2", "cron-3"))
        elif name == "GetJobByCustomId":
            request["customId"] = self.pick(CUSTOM_IDS)
        elif name in _OTHER_IDS:
            request["id"] = self.pick((self.webhooks if name == "SetWebhookEnabled" else self.workers)[-3:])
        if name in _SWEEPING and self.random.random() < 0.9:
            request["queue"] = QUEUES[-1]
        if "id" in request and any(field.name == "token" for field in COMMANDS[name].fields):
            request["token"] = self.tokens.get(request["id"], "token")
        if "ids" in request:
            for field in ("tokens", "results", "durations", "removeOnCompletes"):
                if field in request:
                    request[field] = [
                        self.tokens.get(id) if field == "tokens" else self._fields[field]()[0] for id in request["ids"]
                    ]
        return request

    def _cron(self) -> dict[str, Any]:
        cron: dict[str, Any] = {"name": self.pick(("cron-1", "cron-2", "cron-3")), "queue": self.pick(QUEUES)}
        if self.flag():
            cron["schedule"] = self.pick(("* * * * *", "*/2 * * * * *", "0 3 * * 1-5", "@daily", "0 0 30 2 *"))
            cron["timezone"] = self.pick(("UTC", "Europe/Berlin", None))
        else:
            cron["repeatEvery"] = self.pick((20, 1_000, 3_600_000))
        extra: dict[str, Callable[[], Any]] = {
            "data": self.data,
            "priority": lambda: 3,
            "maxLimit": lambda: 2,
            "uniqueKey": lambda: self.pick(KEYS),
            "immediately": self.flag,
            "preventOverlap": self.flag,
            "skipIfNoWorker": self.flag,
            "jobOptions": lambda: {"maxAttempts": 2, "delay": 1},
        }
        for name in self.random.sample(sorted(extra), self.random.randrange(4)):
            cron[name] = extra[name]()
        return cron

    def feed(self) -> list[dict[str, Any]]:
        """Requests that see to it that there are jobs in every state to be asked for."""
        queue = self.pick(QUEUES[:-1])
        jobs = [self.job("customId") for _ in range(4)] + [{"name": "n", "data": n} for n in range(4)]
        for job in jobs:
            for name in ("dependsOn", "parentId", "childrenIds"):
                job.pop(name, None)
        return [
            {"cmd": "PUSHB", "queue": queue, "jobs": jobs},
            {"cmd": "PULLB", "queue": queue, "count": 4, "owner": "worker-1", "lockTtl": 30_000},
        ]

    # -- mutations ----------------------------------------------------------------------------------------------------

    def mutated(self, request: dict[str, Any], times: int) -> dict[str, Any]:
        """``request`` with ``times`` of its parts replaced, removed, wrapped, repeated, or added to; its ``cmd`` stays."""
        for _ in range(times):
            self._mutate(request)
        return request

    def _mutate(self, request: dict[str, Any]) -> None:
        places: list[tuple[Any, Any]] = []

        def walk(container: Any) -> None:
            for key in list(container) if isinstance(container, dict) else range(len(container)):
                places.append((container, key))
                if isinstance(container[key], dict | list) and container[key] and len(container[key]) < 50:
                    walk(container[key])

        walk(request)
        places = [place for place in places if not (place[0] is request and place[1] == "cmd")]
        if not places:
            request["reqId"] = self.odd()
            return
        container, key = self.pick(places)
        how = self.random.random()
        if how < 0.6:
            container[key] = self.odd()
        elif how < 0.7:
            del container[key]
        elif how < 0.78:
            container[key] = [container[key]]
        elif how < 0.86 and isinstance(container, list):
            container.append(container[key])
        elif isinstance(container, dict):
            name = self.pick((*self._fields, "unknownMember", "__proto__"))
            container[name] = self._fields[name]() if name in self._fields and self.flag() else self.odd()

    def mangled(self, body: bytes) -> bytes:
        """``body`` with bytes changed, cut off, doubled or put in between."""
        mangled = bytearray(body)
        for _ in range(self.pick((1, 1, 2, 5))):
            at = self.random.randrange(len(mangled) + 1)
            how = self.random.randrange(5)
            if how == 0 and at < len(mangled):
                mangled[at] = self.random.randrange(256)
            elif how == 1:
                del mangled[at:]
            elif how == 2:
                mangled[at:at] = self.random.randbytes(self.pick((1, 4, 9)))
            elif how == 3:
                mangled[at:at] = mangled[: self.random.randrange(len(mangled) + 1)]
            elif at < len(mangled):
                mangled[at] ^= 1 << self.random.randrange(8)
        return bytes(mangled)

    # -- answers ------------------------------------------------------------------------------------------------------

    def learn(self, answer: Mapping[Any, Any]) -> None:
        """Take ids, tokens and names out of an answer."""
        found = [answer.get("id"), *(answer.get("ids") or ())]
        self.ids.extend(id for id in found if isinstance(id, str) and len(id) < 100)
        jobs, tokens = answer.get("jobs"), answer.get("tokens")
        pairs = [(answer.get("job"), answer.get("token"))]
        if isinstance(jobs, list) and isinstance(tokens, list):
            pairs += zip(jobs, tokens, strict=False)
        for job, token in pairs:
            if isinstance(job, dict) and isinstance(token, str):
                self.tokens[job["id"]] = token
                self.active.append(job["id"])
        data = answer.get("data")
        if isinstance(data, dict):
            if isinstance(data.get("jobs"), list):
                self.ids.extend(job["id"] for job in data["jobs"] if isinstance(job, dict) and "id" in job)
            if isinstance(data.get("webhookId"), str):
                self.webhooks.append(data["webhookId"])
            if isinstance(data.get("workerId"), str):
                self.workers.append(data["workerId"])
