"""Webhook records: what is accepted, what is refused, listing, switching, removing."""

from oracle import scenario

EVENTS = ["job.pushed", "job.started", "job.completed", "job.failed", "job.progress"]


def add(s, url="https://hooks.example.com/in", events=("job.completed",), record=False, **more):
    more.setdefault("queue", s.q())
    return (s.a if record else s.quiet).cmd(cmd="AddWebhook", url=url, events=list(events), **more)


def drop(s, got):
    if got["ok"]:
        s.quiet.cmd(cmd="RemoveWebhook", webhookId=got["data"]["webhookId"])


def mine(s, *ids):
    """This scenario's webhooks in the listing, in its order."""
    return [w for w in s.quiet.cmd(cmd="ListWebhooks")["data"]["webhooks"] if w["id"] in ids]


def tried(s, *urls):
    """For each URL: the error, or the URL as it was stored."""
    for url in urls:
        got = add(s, url, events=[])
        s.note([url[:70], got.get("error") or ["accepted", got["data"]["url"][:70]]])
        drop(s, got)


@scenario
def record_and_listing(s):
    """A new webhook answers with its id and is listed with counters and without its secret."""
    got = add(s, "https://hooks.example.com/a?x=1", EVENTS, record=True, secret="topsecret")
    wid = got["data"]["webhookId"]
    s.note(mine(s, wid))
    s.note(sorted(mine(s, wid)[0]))
    s.note(sorted(s.quiet.cmd(cmd="ListWebhooks")["data"]["stats"]))
    drop(s, got)
    s.note(mine(s, wid))


@scenario
def for_all_queues(s):
    """Without a queue, or with null, a webhook belongs to every queue."""
    a = s.quiet.cmd(cmd="AddWebhook", url="https://hooks.example.com/all", events=[])
    b = s.quiet.cmd(cmd="AddWebhook", url="https://hooks.example.com/all", events=[], queue=None)
    s.note([a["data"]["queue"], b["data"]["queue"], a["data"]["webhookId"] != b["data"]["webhookId"]])
    s.note(mine(s, a["data"]["webhookId"], b["data"]["webhookId"]))
    drop(s, a), drop(s, b)


@scenario
def event_names(s):
    """Unknown event names are all listed in the error; an empty list is accepted; order and doubles are kept."""
    add(s, events=["job.done"], record=True)
    add(s, events=["job.completed", "pushed", "JOB.FAILED"], record=True)
    for events in ([], ["job.failed", "job.failed"], EVENTS[::-1]):
        got = add(s, events=events)
        s.note(got.get("error") or got["data"]["events"])
        drop(s, got)


@scenario
def the_url_is_checked_first(s):
    """With a bad URL and a bad event the URL's error is given."""
    add(s, "ftp://x.example.com/", events=["nope"], record=True)
    add(s, "", events=["nope"], record=True)


@scenario
def url_shape(s):
    """Empty, too long, unparsable and non-HTTP addresses."""
    tried(
        s,
        "",
        "not a url",
        "hooks.example.com/x",
        "http://",
        "https://hooks.example.com:99999/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "ws://example.com/",
        "https://e.example.com/" + "x" * 2027,
        "https://e.example.com/" + "x" * 2026,
        "HTTPS://Hooks.Example.COM/Path",
    )


@scenario
def local_addresses(s):
    """Names and addresses of the server's own machine."""
    tried(
        s,
        "http://localhost/x",
        "http://LOCALHOST:8080/x",
        "http://api.localhost/x",
        "http://127.0.0.1/x",
        "http://127.1/x",
        "http://2130706433/x",
        "http://0x7f000001/x",
        "http://0177.0.0.1/x",
        "http://127.0.0.2/x",
        "http://[::1]/x",
        "http://[0:0:0:0:0:0:0:1]/x",
        "http://0.0.0.0/x",
        "http://0/x",
        "http://[::]/x",
    )


@scenario
def private_addresses(s):
    """Private, link-local and unique-local ranges, up to their edges."""
    tried(
        s,
        "http://10.0.0.1/",
        "http://10.255.255.255/",
        "http://11.0.0.1/",
        "http://172.15.0.1/",
        "http://172.16.0.1/",
        "http://172.31.255.255/",
        "http://172.32.0.1/",
        "http://192.168.0.1/",
        "http://192.169.0.1/",
        "http://169.254.1.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[fc00::1]/",
        "http://[fdff::1]/",
        "http://[fe80::1]/",
        "http://[febf::1]/",
        "http://[2606:4700::1111]/",
        "http://8.8.8.8/",
    )


@scenario
def disguised_addresses(s):
    """IPv4 inside IPv6, user info, ports and cloud metadata names."""
    tried(
        s,
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[::127.0.0.1]/",
        "http://example.com@127.0.0.1/",
        "http://user:pw@10.0.0.1:99/",
        "http://metadata.google.internal/",
        "http://anything.internal/x",
        "http://internal.example.com/",
    )


@scenario
def switching(s):
    """SetWebhookEnabled switches and is idempotent; the field is id."""
    got = add(s)
    wid = got["data"]["webhookId"]
    s.note([w["enabled"] for w in mine(s, wid)])
    s.cmd(cmd="SetWebhookEnabled", id=wid, enabled=False)
    s.note([w["enabled"] for w in mine(s, wid)])
    s.cmd(cmd="SetWebhookEnabled", id=wid, enabled=False)
    s.cmd(cmd="SetWebhookEnabled", id=wid, enabled=True)
    s.note([w["enabled"] for w in mine(s, wid)])
    s.cmd(cmd="SetWebhookEnabled", id=s.uid("nobody"), enabled=True)
    s.cmd(cmd="SetWebhookEnabled", webhookId=wid, enabled=True)
    drop(s, got)


@scenario
def removing(s):
    """RemoveWebhook takes webhookId, once."""
    wid = add(s)["data"]["webhookId"]
    s.cmd(cmd="RemoveWebhook", id=wid)
    s.cmd(cmd="RemoveWebhook", webhookId=wid)
    s.cmd(cmd="RemoveWebhook", webhookId=wid)
    s.cmd(cmd="SetWebhookEnabled", id=wid, enabled=True)


@scenario
def listing_order(s):
    """Webhooks are listed in the order they were added, equal ones as separate records."""
    got = [add(s, f"https://hooks.example.com/{i % 2}") for i in range(4)]
    ids = [g["data"]["webhookId"] for g in got]
    s.note([[ids.index(w["id"]), w["url"]] for w in mine(s, *ids)])
    for g in got:
        drop(s, g)
