"""HTTP routes of schedulers, webhooks and workers, health, figures, preflight and Prometheus."""

import http.client

from oracle import scenario

NEVER = "0 0 29 2 *"


def silently(s, method, url, body=None, **more):
    """An HTTP exchange that is not recorded."""
    n = len(s.transcript)
    got = s.http(method, url, body, **more)
    del s.transcript[n:]
    return got


def shape(v):
    """Names and kinds of a JSON value, without its values."""
    if isinstance(v, dict):
        return {k: shape(x) for k, x in v.items()}
    if isinstance(v, bool):
        return "bool"
    if isinstance(v, (int, float)):
        return "number"
    return "null" if v is None else "list" if isinstance(v, list) else "text"


@scenario
def cron_routes(s):
    """Create, read, list, update and delete a scheduler over HTTP."""
    c = "/crons/" + s.uid("c")
    s.http(
        "POST",
        "/crons",
        {
            "name": s.uid("c"),
            "queue": s.q(),
            "data": {"x": 1},
            "schedule": NEVER,
            "timezone": "Europe/Rome",
            "jobName": "report",
            "priority": 2,
            "maxLimit": 5,
        },
    )
    s.http("GET", c)
    code, got = silently(s, "GET", "/crons")
    s.note([code, sorted(got), [x["name"] for x in got["crons"] if x["name"] == s.uid("c")]])
    s.http("POST", "/crons", {"name": s.uid("c"), "queue": s.q(), "data": {}, "repeatEvery": 3600000})
    s.http("DELETE", c)
    s.http("DELETE", c)
    s.http("GET", c)


@scenario
def cron_refusals(s):
    """Broken JSON and bad timings answer 400 with the command's text; a job name that is no text is default."""
    s.http("POST", "/crons", body=b"")
    s.http("POST", "/crons", body=b"{")
    s.http("POST", "/crons", {"name": s.uid("c"), "queue": s.q(), "data": {}})
    s.http("POST", "/crons", {"name": s.uid("c"), "queue": s.q(), "data": {}, "repeatEvery": 0})
    s.http("POST", "/crons", {"name": s.uid("c"), "queue": s.q(), "data": {}, "schedule": "99 * * * *"})
    s.http(
        "POST",
        "/crons",
        {"name": s.uid("c"), "queue": s.q(), "data": {}, "schedule": NEVER, "timezone": "Nowhere/City"},
    )
    s.http("GET", "/crons/" + s.uid("c"))
    got = silently(
        s,
        "POST",
        "/crons",
        {"name": s.uid("c"), "queue": s.q(), "data": {"name": "x"}, "repeatEvery": 3600000, "jobName": 5},
    )[1]
    s.note(got["cron"]["jobName"])
    silently(s, "DELETE", "/crons/" + s.uid("c"))


@scenario
def cron_names_are_decoded(s):
    """A scheduler's name may hold blanks and slashes when percent-encoded in the path."""
    name = s.uid("a b/c:d")
    silently(s, "POST", "/crons", {"name": name, "queue": s.q(), "data": {}, "repeatEvery": 3600000})
    enc = name.replace(" ", "%20").replace("/", "%2F")
    code, got = silently(s, "GET", "/crons/" + enc)
    s.note([code, got["cron"]["name"] == name])
    s.note(silently(s, "DELETE", "/crons/" + enc))


@scenario
def webhook_routes(s):
    """Add, list, switch and remove a webhook over HTTP."""
    _, got = s.http(
        "POST",
        "/webhooks",
        {"url": "https://hooks.example.com/x", "events": ["job.failed"], "queue": s.q(), "secret": "hidden"},
    )
    wid = got["data"]["webhookId"]

    def mine():
        code, all_ = silently(s, "GET", "/webhooks")
        return [code, [w for w in all_["data"]["webhooks"] if w["id"] == wid], shape(all_["data"]["stats"])]

    s.note(mine())
    s.http("PUT", f"/webhooks/{wid}/enabled", {"enabled": False})
    s.note(mine()[1][0]["enabled"])
    s.http("DELETE", f"/webhooks/{wid}")
    s.http("DELETE", f"/webhooks/{wid}")
    s.http("PUT", f"/webhooks/{wid}/enabled", {"enabled": True})
    s.note(mine()[1])


@scenario
def webhook_refusals(s):
    """Broken JSON, bad addresses and bad events answer 400."""
    s.http("POST", "/webhooks", body=b"nope")
    s.http("POST", "/webhooks", {"url": "http://localhost/x", "events": ["job.failed"]})
    s.http("POST", "/webhooks", {"url": "", "events": []})
    s.http("POST", "/webhooks", {"url": "https://hooks.example.com/x", "events": ["job.gone"]})
    s.note(
        [
            silently(s, m, p)[0]
            for m, p in (
                ("GET", "/webhooks/" + s.uid("x")),
                ("POST", f"/webhooks/{s.uid('x')}/enabled"),
                ("PUT", "/webhooks"),
            )
        ]
    )


@scenario
def worker_routes(s):
    """Register, list, list by queue, heartbeat and unregister a worker over HTTP."""
    w = s.uid("w")
    s.http(
        "POST",
        "/workers",
        {"name": "n", "queues": [s.q(), s.q("r")], "concurrency": 4, "workerId": w, "hostname": "box", "pid": 7},
    )
    code, got = silently(s, "GET", "/workers")
    s.note(
        [
            code,
            [{k: v for k, v in x.items() if k != "uptime"} for x in got["data"]["workers"] if x["id"] == w],
            shape(got["data"]["stats"]),
        ]
    )
    s.http("POST", f"/workers/{w}/heartbeat", {"activeJobs": 2, "processed": 10, "failed": 1})
    s.http("GET", f"/queues/{s.q('r')}/workers")
    s.http("GET", f"/queues/{s.uid('other')}/workers")
    s.http("POST", f"/workers/{w}/heartbeat")
    s.http("POST", f"/workers/{s.uid('nobody')}/heartbeat", {})
    s.http("DELETE", f"/workers/{w}")
    s.http("DELETE", f"/workers/{w}")


@scenario
def worker_defaults(s):
    """A worker registered with its name and queues alone gets an id and defaults; registering again keeps its name."""
    _, got = s.http("POST", "/workers", {"name": "n", "queues": [s.q()]})
    w = got["data"]["workerId"]
    _, got = s.http("POST", "/workers", {"name": "other", "queues": [s.q("b")], "concurrency": 9, "workerId": w})
    s.http("POST", "/workers", body=b"{")
    silently(s, "DELETE", f"/workers/{w}")
    s.note([silently(s, "GET", "/workers/" + w)[0], silently(s, "PUT", "/workers")[0]])


@scenario
def health_and_readiness(s):
    """Health, liveness and readiness: status, shape, and any method."""
    code, got = silently(s, "GET", "/health")
    s.note([code, got["ok"], got["status"], shape(got)])
    s.http("GET", "/healthz")
    s.http("GET", "/live")
    s.http("GET", "/ready")
    s.note([silently(s, "POST", p)[0] for p in ("/health", "/healthz", "/live", "/ready")])
    s.note([silently(s, "GET", p)[0] for p in ("/health/", "/", "/HEALTH")])


@scenario
def ping_and_storage(s):
    """Ping and the storage status of a healthy server."""
    s.http("GET", "/ping")
    s.http("GET", "/storage")
    s.note(
        [silently(s, "POST", p)[0] for p in ("/ping", "/storage", "/stats", "/metrics", "/dashboard", "/prometheus")]
    )


@scenario
def figures(s):
    """The shapes of stats, metrics and the dashboards."""
    for path in ("/stats", "/metrics", "/dashboard"):
        code, got = silently(s, "GET", path)
        s.note([path, code, shape(got)])


@scenario
def dashboard_list(s):
    """The paged queue list: its bounds, its own line for this queue."""
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="j", data={})
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="j", data={}, delay=60000)
    got, offset, mine = {"total": 1}, 0, {}
    while offset < got["total"]:
        got = silently(s, "GET", f"/dashboard/queues?limit=500&offset={offset}")[1]
        mine.update({q["name"]: q for q in got["queues"] if q["name"] == s.q()})
        offset += 400
    s.note(mine)
    s.note(sorted(got))
    for q in (
        "",
        "?limit=0",
        "?limit=-5",
        "?limit=9999",
        "?limit=x",
        "?limit=7",
        "?offset=-3",
        "?offset=x",
        "?limit=3&offset=1",
    ):
        got = silently(s, "GET", "/dashboard/queues" + q)[1]
        s.note([q, got["limit"], got["offset"]])


@scenario
def preflight(s):
    """OPTIONS on any path answers 204 with the allowed methods and headers."""
    for path in ("/queues", "/no/such/path", "/health"):
        s.http(
            "OPTIONS",
            path,
            headers={"Origin": "https://app.example.com"},
            keep=["access-control-allow-methods", "access-control-allow-headers", "access-control-max-age"],
        )


@scenario
def prometheus(s):
    """The exposition: content type, metric names with their kinds and labels, and every sample a number."""
    s.quiet.cmd(cmd="PUSH", queue=s.q(), name="j", data={})
    conn = http.client.HTTPConnection(s.host, s.http_port, timeout=10)
    conn.request("GET", "/prometheus")
    answer = conn.getresponse()
    text = answer.read().decode()
    conn.close()
    s.note([answer.status, answer.getheader("content-type"), text.endswith("\n"), text.endswith("\n\n")])
    lines = [x for x in text.splitlines() if x and "sqlite" not in x]
    s.note(sorted(" ".join(x.split()[2:4]) for x in lines if x.startswith("# TYPE")))
    samples = [x for x in lines if not x.startswith("#")]
    s.note(all(float(x.rsplit(" ", 1)[1]) >= 0 for x in samples))
    labels = set()
    for x in samples:
        name, _, rest = x.partition("{")
        if rest:
            labels.add(name + " " + ",".join(p.split("=")[0] for p in rest.split("}")[0].split(",") if "=" in p))
    s.note(sorted(labels))
    s.note([x for x in samples if x.startswith("bunqueue_push_duration_seconds_bucket")][0].split(" ")[0])
    s.note(sorted({x.split('transport="')[1].split('"')[0] for x in samples if x.startswith("bunqueue_connections")}))


@scenario
def unknown_routes(s):
    """Unknown paths and methods answer 404 with a JSON body."""
    s.http("GET", "/nothing", keep=["content-type"])
    s.http("POST", "/queues/x/y/z", {"a": 1})
    s.note(
        [
            silently(s, m, p)[0]
            for m, p in (
                ("DELETE", "/crons"),
                ("PUT", "/crons/x"),
                ("GET", "/gc"),
                ("POST", "/heapstats"),
                ("PATCH", "/queues"),
                ("GET", "//queues"),
            )
        ]
    )


@scenario
def garbage_collection(s):
    """POST /gc answers memory before and after; heapstats lists what it can."""
    code, got = silently(s, "POST", "/gc")
    s.note([code, shape(got)])
    code, got = silently(s, "GET", "/heapstats")
    s.note([code, sorted(got)])
