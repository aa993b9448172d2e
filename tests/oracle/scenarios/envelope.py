"""Frames, envelope, pipelining, greeting and authentication on an open server."""

import socket
import struct

import msgpack
from oracle import scenario


def frame(body):
    return struct.pack(">I", len(body)) + body


def packed(**msg):
    return frame(msgpack.packb(msg, use_bin_type=True))


@scenario
def undecodable_bodies(s):
    """Truncated msgpack, an empty body and falsy values are format errors; the connection stays usable."""
    for body in (b"\x81\xa3cmd", b"\xde\x00", b"", b"\xc0", b"\x00", b"\xc2", b"\xa0"):
        s.a.raw(frame(body))
    s.cmd(cmd="Ping")


@scenario
def trailing_bytes_and_foreign_ext(s):
    """Bytes after the first value, or an ext type nobody knows, spoil the whole frame."""
    ping = msgpack.packb({"cmd": "Ping"})
    s.a.raw(frame(ping + b"\xc0"))
    s.a.raw(frame(ping + ping))
    s.a.raw(frame(msgpack.packb({"cmd": "Ping", "x": msgpack.ExtType(7, b"abc")})))
    s.cmd(cmd="Ping")


@scenario
def truthy_values_that_are_no_map(s):
    """Arrays, strings, numbers and true decode, but are no command."""
    for value in ([], ["Ping"], "Ping", 5, True, 1.5):
        s.a.raw(frame(msgpack.packb(value)))
    s.cmd(cmd="Ping")


@scenario
def missing_or_empty_cmd(s):
    """A map without a usable cmd is an invalid command; a string reqId is echoed even then."""
    for extra in ({}, {"cmd": None}, {"cmd": ""}, {"cmd": 0}, {"CMD": "Ping"}):
        s.a.wire.send({"reqId": "q7", **extra})
        got = s.a.recv(3)
        s.note(got.get("reqId"))


@scenario
def unknown_commands(s):
    """Names are exact: case matters, nothing is trimmed."""
    for name in ("NoSuchCommand", "ping", "PING", "push", "Pull", " Ping", "Ping ", "getjob"):
        s.cmd(cmd=name)
    s.cmd(cmd="Ping")


@scenario
def reqid_echo(s):
    """Whatever reqId a dispatched command carries comes back unchanged, on success and on error."""
    for req in ("abc", "", "ünï", 17, {"k": [1, "x"]}):
        got = s.cmd(cmd="Ping", reqId=req)
        s.note(got.get("reqId"))
        got = s.cmd(cmd="Promote", id=s.uid("none"), reqId=req)
        s.note(got.get("reqId"))
    got = s.cmd(cmd="NoSuchCommand", reqId="r1")
    s.note(got.get("reqId"))


@scenario
def no_reqid(s):
    """A request without reqId gets an answer without one."""
    s.a.wire.send({"cmd": "Ping"})
    got = s.a.recv(3)
    s.note(got.get("reqId") is None)


@scenario
def unknown_fields_are_ignored(s):
    """Extra members of a request never matter."""
    s.cmd(cmd="Ping", banana=1, ok=False, data={"x": [1]})
    got = s.cmd(cmd="PUSH", queue=s.q(), name="n", data=1, banana={"a": 1}, jobid="x", token="t", state="failed")
    s.cmd(cmd="GetState", id=got["id"])


@scenario
def missing_fields_are_errors(s):
    """Without the queue, id or list a command needs, the answer is an error and the connection lives on."""
    for cmd in (
        "Pause",
        "Resume",
        "IsPaused",
        "Drain",
        "Obliterate",
        "Clean",
        "Count",
        "GetJobs",
        "GetJobCounts",
        "GetCountsPerPriority",
        "Dlq",
        "GetDlqStats",
        "RetryDlq",
        "PurgeDlq",
        "GetDlqConfig",
        "SetDlqConfig",
        "GetStallConfig",
        "PromoteJobs",
        "PUSH",
        "PUSHB",
        "PULL",
        "PULLB",
        "ACK",
        "ACKB",
        "FAIL",
        "JobHeartbeatB",
        "ExtendLocks",
        "AddLog",
        "WaitJob",
        "GetJob",
        "Cancel",
        "Promote",
        "Progress",
        "Update",
        "Discard",
        "MoveToWait",
        "UnregisterWorker",
        "Heartbeat",
    ):
        s.note([cmd, s.quiet.cmd(cmd=cmd)["ok"]])
    for cmd, more in (("PUSHB", {}), ("PUSHB", {"jobs": 5}), ("SetDlqConfig", {})):
        s.note([cmd, more, s.quiet.cmd(cmd=cmd, queue=s.q(), **more)["ok"]])
    s.cmd(cmd="Ping")


@scenario
def oversized_length_prefix(s):
    """One byte over 64 MiB is refused from the prefix alone, and the server hangs up."""
    s.a.raw(struct.pack(">I", 64 * 1024 * 1024 + 1))
    s.recv(3)
    b = s.conn("b")
    b.raw(struct.pack(">I", 0xFFFFFFFF))
    b.recv(3)
    s.conn("c").cmd(cmd="Ping")


@scenario
def length_prefix_at_the_limit(s):
    """Exactly 64 MiB is a frame the server waits for."""
    s.a.raw(struct.pack(">I", 64 * 1024 * 1024), timeout=0.6)
    s.conn("b").cmd(cmd="Ping")


@scenario
def frame_in_pieces(s):
    """A frame may arrive byte by byte, its prefix included."""
    data = packed(cmd="GetState", id="no-such-job", reqId="z")
    for i in range(len(data)):
        s.a.wire.send_raw(data[i : i + 1])
        if i in (1, 3, 4, 9):
            s.sleep(0.03)
    got = s.recv(5)
    s.note(got.get("reqId"))


@scenario
def frames_glued_together(s):
    """Several frames in one write, the last one cut: the complete ones are answered first."""
    parts = [packed(cmd="GetState", id=f"no-{i}", reqId=str(i)) for i in range(5)]
    glued = b"".join(parts)
    s.a.wire.send_raw(glued[:-7])
    for _ in range(4):
        s.note(s.recv(5).get("reqId"))
    s.a.wire.send_raw(glued[-7:])
    s.note(s.recv(5).get("reqId"))


@scenario
def answers_overtake_a_long_poll(s):
    """A waiting pull does not hold up the commands behind it."""
    s.send(cmd="PULL", queue=s.q("empty"), timeout=700)
    s.send(cmd="Ping")
    s.send(cmd="GetState", id="nope")
    order = [s.a.wire.recv(5)["reqId"] for _ in range(3)]
    s.note([order.index(r) for r in ("a1", "a2", "a3")][0] == 2)
    s.note(sorted(order))


@scenario
def long_polls_end_by_their_own_deadline(s):
    """Pulls with descending waits are answered in reverse order."""
    for t in (1300, 900, 500, 100):
        s.send(cmd="PULL", queue=s.q("empty"), timeout=t)
    s.note([s.a.wire.recv(5)["reqId"] for _ in range(4)])


@scenario
def forty_nine_parked_pulls_leave_room(s):
    """With 49 waiting pulls a connection still serves other commands."""
    for _ in range(49):
        s.a.wire.send({"cmd": "PULL", "queue": s.q("empty"), "timeout": 1500, "reqId": "p"})
    s.cmd(cmd="GetState", id="nope")
    got = [s.a.wire.recv(8) for _ in range(49)]
    s.note([len(got), all(g["ok"] and g.get("job") is None for g in got)])


@scenario
def burst_of_pushes_keeps_order(s):
    """Twenty pushes in one write are enqueued and answered in the order sent."""
    blob = b"".join(packed(cmd="PUSH", queue=s.q(), name=f"n{i}", data=i, reqId=str(i)) for i in range(20))
    s.a.wire.send_raw(blob)
    s.note([s.a.wire.recv(5)["reqId"] for _ in range(20)])
    got = s.quiet.cmd(cmd="PULLB", queue=s.q(), count=20)
    s.note([j["data"] for j in got["jobs"]])


@scenario
def hello_needs_nothing(s):
    """Hello always names the protocol, whatever the client claims."""
    s.cmd(cmd="Hello", protocolVersion=3, capabilities=["pipelining"])
    s.cmd(cmd="Hello")
    s.cmd(cmd="Hello", protocolVersion=99, capabilities=[])
    got = s.cmd(cmd="Hello", protocolVersion=1, capabilities=["nothing"])
    s.note([isinstance(got.get("version"), str), len(got.get("version", "")) > 0])


@scenario
def auth_on_an_open_server(s):
    """Without configured tokens every Auth is refused, yet the connection keeps working."""
    s.cmd(cmd="Auth", token="anything")
    s.cmd(cmd="Auth", token="")
    s.cmd(cmd="Ping")
    s.cmd(cmd="Count", queue=s.q())


@scenario
def numbers_on_the_wire(s):
    """Timestamps travel as float64, small integers as integers, big ones never as 64-bit integers."""
    s.quiet.cmd(
        cmd="PUSH",
        queue=s.q(),
        name="n",
        data={"small": 7, "neg": -7, "u32": 4294967295, "big": 9007199254740991.0, "frac": 0.25},
    )
    job = s.quiet.cmd(cmd="PULL", queue=s.q())["job"]
    s.note(
        {
            k: type(job[k]).__name__
            for k in ("createdAt", "runAt", "startedAt", "lastHeartbeat", "priority", "attempts", "maxAttempts")
        }
    )
    s.note({k: [type(v).__name__, repr(v)] for k, v in sorted(job["data"].items())})


@scenario
def payload_types_round_trip(s):
    """Binary, nested, unicode, empty and odd keys come back as they were sent."""
    data = {
        "bin": b"\x00\x01\xff",
        "nested": {"a": [1, [2, {"b": None}]]},
        "uni": "héllo ✓ 🐇",
        "empty": "",
        "list": [],
        "map": {},
        "t": True,
        "f": False,
        "__proto__": {"x": 1},
        "constructor": "c",
        "prototype": [1],
    }
    s.cmd(cmd="PUSH", queue=s.q(), name="n", data=data)
    s.cmd(cmd="PULL", queue=s.q())


@scenario
def number_keys_become_strings(s):
    """Map keys that are numbers come back as strings."""
    s.quiet.wire.send({"cmd": "PUSH", "queue": s.q(), "name": "n", "data": {5: 1, -1: 2}, "reqId": "x"})
    s.quiet.wire.recv(5)
    s.note(s.quiet.cmd(cmd="PULL", queue=s.q())["job"]["data"])


@scenario
def undefined_is_absence(s):
    """Ext type 0 in a request means: not given."""
    undef = msgpack.ExtType(0, b"\x00")
    got = s.cmd(
        cmd="PUSH",
        queue=s.q(),
        name=undef,
        data={"name": "fromdata", "v": 1},
        priority=undef,
        delay=undef,
        groupId=undef,
    )
    job = s.quiet.cmd(cmd="GetJob", id=got["id"])["job"]
    s.note({k: job.get(k) for k in ("name", "data", "priority", "groupId")})
    s.cmd(cmd="PUSH", queue=undef, name="n", data=1)


@scenario
def half_close_is_close(s):
    """After the client shuts down its writing side, finished answers still arrive, then the stream ends."""
    s.send(cmd="GetState", id="nope")
    s.a.wire.sock.shutdown(socket.SHUT_WR)
    s.recv(5)
    s.recv(5)
