#!/usr/bin/env python3
"""Replay wire-protocol scenarios against a server and compare transcripts.

A scenario is a Python function that talks to a server over the TCP protocol
(4-byte big-endian length prefix + MessagePack map) and, where it needs to,
over HTTP. Every answer is written to a transcript in a normalised form, so
that two servers can be compared: generated ids, lock tokens, queue prefixes,
timestamps and durations become placeholders; null, undefined and absent mean
the same; 1 and 1.0 mean the same.

  replay.py record --port 6789 --http-port 6790 -o golden/ scenarios/*.py
  replay.py check  --port 7789 --http-port 7790 --golden golden/ scenarios/*.py
  replay.py show   --port 7789 scenarios/x.py -k NAME      print one transcript

`record` writes golden/FILE.NAME.json; `check` prints a unified diff for each
scenario whose transcript differs and exits 1. `-k SUBSTRING` selects, `-j N`
runs N scenarios at once (each uses its own queues).

A scenario file holds functions marked with @scenario; each gets a Session:

  from oracle import scenario

  @scenario
  def ack_with_wrong_token(s):
      s.cmd(cmd="PUSH", queue=s.q("a"), name="t", data={"x": 1})
      pulled = s.cmd(cmd="PULL", queue=s.q("a"), owner="w1")
      s.cmd(cmd="ACK", id=pulled["job"]["id"], token="wrong")

s.q(name) makes a queue name unique to the run; s.uid(name) does so for any
other global name (cron, worker, custom id). s.cmd(...) sends one command and
returns the answer (not raising on ok=false). s.conn(name) gives a second
connection with the same methods; .close() drops it. s.send()/.recv() pipeline.
s.events() drains server-initiated event frames. s.http(method, path, json=)
records status and body, and with keep=["header"] those response headers too.
s.sse(path) and s.ws(path) open an event stream and a WebSocket; they record
nothing themselves (note what matters). s.until(fn) polls without recording.
s.quiet is the same session without recording. s.note(value) records a computed
value.
"""

from __future__ import annotations

import argparse
import base64
import concurrent.futures
import contextlib
import difflib
import http.client
import importlib.util
import json
import math
import os
import re
import socket
import struct
import sys
import time
import traceback
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import msgpack

UNDEFINED = msgpack.ExtType(0, b"\x00")


def scenario(fn):
    """Mark a scenario function."""
    fn.opts = getattr(fn, "opts", {})
    return fn


def scenario_opts(**opts):
    """Mark one with options: slow=True, http=True."""

    def wrap(fn):
        fn.opts = opts
        return fn

    return wrap


UUID_RE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
#: keys whose values are run-specific whatever they hold
VOLATILE = {
    "uptime",
    "rss",
    "heapUsed",
    "heapTotal",
    "memory",
    "version",
    "pid",
    "hostname",
    "duration",
    "durationMs",
    "timing",
    "latency",
    "processedOn",
    "finishedOn",
    "elapsed",
    "ttl",
    "age",
    "shards",
}


class Normaliser:
    """Give run-specific values stable placeholders, in order of first sight."""

    def __init__(self, run: str):
        self.run = run
        self.ids: dict[str, str] = {}

    def text(self, value: str) -> str:
        value = value.replace(self.run, "R")

        def sub(m):
            return self.ids.setdefault(m.group(0), f"<id{len(self.ids) + 1}>")

        return UUID_RE.sub(sub, value)

    def value(self, v, key=None):
        if isinstance(v, msgpack.ExtType):
            return None
        if isinstance(v, dict):
            out = {}
            for k in sorted(v, key=str):
                if k == "_state":  # a cache trace the reference leaves on some jobs
                    continue
                nv = self.value(v[k], str(k))
                if nv is not None:
                    out[self.text(str(k))] = nv
            return out
        if isinstance(v, (list, tuple)):
            return [self.value(x) for x in v]
        if isinstance(v, bool) or v is None:
            return v
        if key in VOLATILE and isinstance(v, (int, float, str)):
            return "<volatile>"
        if isinstance(v, (int, float)):
            if isinstance(v, float) and not math.isfinite(v):
                return repr(v)
            if 1.5e12 < v < 2.5e12:
                return "<ts>"
            if isinstance(v, float) and v == int(v):
                return int(v)
            return v
        if isinstance(v, bytes):
            return {"<bytes>": v.hex()}
        return self.text(str(v))


class Wire:
    """One TCP connection."""

    def __init__(self, host, port, timeout=20.0):
        self.sock = socket.create_connection((host, port), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = b""
        self.pending_events: list[dict] = []

    def send_raw(self, data: bytes):
        self.sock.sendall(data)

    def send(self, msg: dict):
        body = msgpack.packb(msg, use_bin_type=True)
        self.sock.sendall(struct.pack(">I", len(body)) + body)

    def _frame(self, timeout=None):
        old = self.sock.gettimeout()
        if timeout is not None:
            self.sock.settimeout(timeout)
        try:
            while True:
                if len(self.buf) >= 4:
                    n = struct.unpack(">I", self.buf[:4])[0]
                    if len(self.buf) >= 4 + n:
                        body, self.buf = self.buf[4 : 4 + n], self.buf[4 + n :]
                        return msgpack.unpackb(body, raw=False, strict_map_key=False)
                chunk = self.sock.recv(1 << 16)
                if not chunk:
                    raise ConnectionError("closed by server")
                self.buf += chunk
        finally:
            self.sock.settimeout(old)

    def recv(self, timeout=None) -> dict:
        while True:
            msg = self._frame(timeout)
            if isinstance(msg, dict) and msg.get("type") == "event":
                self.pending_events.append(msg)
                continue
            return msg

    def events(self, wait=0.3) -> list[dict]:
        end = time.monotonic() + wait
        while (left := end - time.monotonic()) > 0:
            try:
                msg = self._frame(left)
            except TimeoutError:
                break
            self.pending_events.append(msg)
        out, self.pending_events = self.pending_events, []
        return out

    def close(self):
        self.sock.close()


class Conn:
    """A recorded connection of a session."""

    def __init__(self, session, name, record=True):
        self.session, self.name, self.record = session, name, record
        self.wire = Wire(session.host, session.port)
        self._seq = 0

    def send(self, **msg) -> str:
        self._seq += 1
        req = f"{self.name}{self._seq}"
        self.wire.send({"reqId": req, **msg})
        if self.record:
            self.session.log({"on": self.name, "send": self.session.norm.value(msg)})
        return req

    def recv(self, timeout=None) -> dict:
        try:
            msg = self.wire.recv(timeout)
        except (ConnectionError, OSError) as e:
            msg = {"<connection>": "timeout" if isinstance(e, (TimeoutError, socket.timeout)) else "closed"}
        if self.record:
            self.session.log(
                {
                    "on": self.name,
                    "recv": self.session.norm.value(
                        {k: v for k, v in msg.items() if k != "reqId"} if isinstance(msg, dict) else msg
                    ),
                }
            )
        return clean(msg)

    def cmd(self, **msg) -> dict:
        self.send(**msg)
        return self.recv()

    def events(self, wait=0.3):
        got = self.wire.events(wait)
        if self.record:
            self.session.log({"on": self.name, "events": [self.session.norm.value(e) for e in got]})
        return [clean(e) for e in got]

    def raw(self, data: bytes, timeout=3.0):
        """Send bytes as they are; record one answer, or how the connection ended."""
        self.session.log({"on": self.name, "raw": data[:64].hex() + ("…" if len(data) > 64 else "")})
        with contextlib.suppress(OSError):
            self.wire.send_raw(data)
        return self.recv(timeout)

    def close(self):
        if self.record:
            self.session.log({"on": self.name, "close": True})
        self.wire.close()


class EventStream:
    """A server-sent event stream; next() gives one message as a dict, or None in time-out."""

    def __init__(self, host, port, path, headers=None, timeout=10.0):
        self.http = http.client.HTTPConnection(host, port, timeout=timeout)
        self.http.request("GET", path, headers={"accept": "text/event-stream", **(headers or {})})
        self.sock = self.http.sock
        self.answer = self.http.getresponse()
        self.status = self.answer.status
        self.headers = {k.lower(): v for k, v in self.answer.getheaders()}
        self.buf = b""

    def next(self, timeout=5.0):
        end = time.monotonic() + timeout
        while b"\n\n" not in self.buf:
            left = end - time.monotonic()
            if left <= 0:
                return None
            self.sock.settimeout(left)
            try:
                chunk = self.answer.read1(1 << 16)
            except (TimeoutError, OSError):
                return None
            if not chunk:
                return None
            self.buf += chunk
        block, self.buf = self.buf.split(b"\n\n", 1)
        out: dict = {}
        for line in block.decode().split("\n"):
            field, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if field == "":
                out["comment"] = value
            elif field == "data":
                try:
                    out["data"] = json.loads(value)
                except ValueError:
                    out["data"] = value
            else:
                out[field] = value
        return out

    def until(self, wanted, timeout=8.0):
        """The first message for which wanted(message) holds, or None."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:
            msg = self.next(left)
            if msg is None or wanted(msg):
                return msg
        return None

    def close(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.answer.close()
        self.http.close()


class WebSocket:
    """A small WebSocket client (text frames, JSON). recv() gives parsed JSON, text, or None in time-out."""

    def __init__(self, host, port, path, headers=None, timeout=10.0):
        self.sock = socket.create_connection((host, port), timeout=timeout)
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Key: " + base64.b64encode(os.urandom(16)).decode(),
            "Sec-WebSocket-Version: 13",
            *(f"{k}: {v}" for k, v in (headers or {}).items()),
        ]
        self.sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self.buf = b""
        while b"\r\n\r\n" not in self.buf:
            chunk = self.sock.recv(65536)
            if not chunk:
                break
            self.buf += chunk
        head, _, self.buf = self.buf.partition(b"\r\n\r\n")
        self.status = int(head.split(b" ")[1]) if head else 0
        self.closed = self.status != 101

    def _send(self, opcode, payload: bytes):
        n = len(payload)
        head = bytes([0x80 | opcode])
        head += (
            bytes([0x80 | n])
            if n < 126
            else (bytes([0xFE]) + struct.pack(">H", n) if n < 65536 else bytes([0xFF]) + struct.pack(">Q", n))
        )
        mask = os.urandom(4)
        self.sock.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload)))

    def send(self, msg):
        self._send(1, (msg if isinstance(msg, str) else json.dumps(msg)).encode())

    def _need(self, n, end):
        while len(self.buf) < n:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.sock.settimeout(left)
            chunk = self.sock.recv(65536)
            if not chunk:
                self.closed = True
                raise TimeoutError
            self.buf += chunk

    def recv(self, timeout=5.0):
        end = time.monotonic() + timeout
        text = b""
        try:
            while not self.closed:
                self._need(2, end)
                n, at = self.buf[1] & 0x7F, 2
                if n > 125:
                    at = 4 if n == 126 else 10
                    self._need(at, end)
                    n = int.from_bytes(self.buf[2:at], "big")
                self._need(at + n, end)
                first, payload, self.buf = self.buf[0], self.buf[at : at + n], self.buf[at + n :]
                opcode = first & 0x0F
                if opcode == 8:
                    self.closed = True
                elif opcode == 9:
                    self._send(10, payload)
                elif opcode in (0, 1, 2):
                    text += payload
                    if first & 0x80:
                        try:
                            return json.loads(text)
                        except ValueError:
                            return text.decode("utf-8", "replace")
        except (TimeoutError, OSError):
            pass
        return None

    def until(self, wanted, timeout=8.0):
        """The first message for which wanted(message) holds, or None."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0 and not self.closed:
            msg = self.recv(left)
            if msg is not None and wanted(msg):
                return msg
        return None

    def ask(self, msg, timeout=5.0):
        """Send a command and give the next message that is an answer (has ok)."""
        self.send(msg)
        return self.until(lambda m: isinstance(m, dict) and "ok" in m, timeout)

    def close(self):
        with contextlib.suppress(OSError):
            self._send(8, b"")
        self.sock.close()


def clean(v):
    if isinstance(v, msgpack.ExtType):
        return None
    if isinstance(v, dict):
        return {k: clean(x) for k, x in v.items()}
    if isinstance(v, list):
        return [clean(x) for x in v]
    return v


class Session:
    def __init__(self, host, port, http_port):
        self.host, self.port, self.http_port = host, port, http_port
        self.run = "r" + uuid.uuid4().hex[:10]
        self.norm = Normaliser(self.run)
        self.transcript: list = []
        self.conns: dict[str, Conn] = {}
        self.streams: list = []
        self._quiet = None

    def log(self, entry):
        self.transcript.append(entry)

    def q(self, name="q"):
        return f"{self.run}-{name}"

    uid = q

    def conn(self, name) -> Conn:
        if name not in self.conns:
            self.conns[name] = Conn(self, name)
        return self.conns[name]

    @property
    def a(self):
        return self.conn("a")

    @property
    def quiet(self) -> Conn:
        if self._quiet is None:
            self._quiet = Conn(self, "quiet", record=False)
        return self._quiet

    def cmd(self, **m):
        return self.a.cmd(**m)

    def send(self, **m):
        return self.a.send(**m)

    def recv(self, timeout=None):
        return self.a.recv(timeout)

    def events(self, wait=0.3):
        return self.a.events(wait)

    def note(self, value):
        self.log({"note": self.norm.value(value)})

    def sleep(self, seconds):
        time.sleep(seconds)

    def until(self, fn, timeout=10.0, every=0.05):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            v = fn(self.quiet)
            if v:
                return v
            time.sleep(every)
        self.log({"until": "timed out"})
        return None

    def http(self, method, path, json_body=None, headers=None, body=None, keep=()):
        url = f"http://{self.host}:{self.http_port}{path}"
        data = body if body is not None else (json.dumps(json_body).encode() if json_body is not None else None)
        hdrs = dict(headers or {})
        if json_body is not None:
            hdrs.setdefault("content-type", "application/json")
        req = urllib.request.Request(url, data=data, method=method, headers=hdrs)
        try:
            with urllib.request.urlopen(req, timeout=20) as r:
                status, raw, got = r.status, r.read(), r.headers
        except urllib.error.HTTPError as e:
            with e:
                status, raw, got = e.code, e.read(), e.headers
        try:
            parsed = json.loads(raw)
        except ValueError:
            parsed = raw.decode("utf-8", "replace")
        entry = {"http": f"{method} {self.norm.text(path)}", "status": status, "body": self.norm.value(parsed)}
        if keep:
            entry["headers"] = {h.lower(): got.get(h) for h in keep}
        self.log(entry)
        return status, parsed

    def sse(self, path, headers=None):
        self.streams.append(EventStream(self.host, self.http_port, path, headers))
        return self.streams[-1]

    def ws(self, path="/ws", headers=None):
        self.streams.append(WebSocket(self.host, self.http_port, path, headers))
        return self.streams[-1]

    def close(self):
        for stream in self.streams:
            stream.close()
        for c in list(self.conns.values()) + ([self._quiet] if self._quiet else []):
            with contextlib.suppress(OSError):
                c.wire.close()


def run_one(fn, host, port, http_port, verbose=False):
    """Run a scenario; its transcript."""
    s = Session(host, port, http_port)
    try:
        fn(s)
    except Exception as e:  # a scenario that breaks is a result too
        s.log({"scenario-error": f"{type(e).__name__}: {e}"})
        if verbose:
            traceback.print_exc()
    finally:
        s.close()
    return s.transcript


def load(paths):
    """Scenarios of files, by FILE.NAME."""
    sys.modules.setdefault("oracle", sys.modules[__name__])
    out = {}
    for p in map(Path, paths):
        spec = importlib.util.spec_from_file_location(f"oracle_{p.stem}", p)
        mod = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(mod)
        for name, fn in vars(mod).items():
            if hasattr(fn, "opts") and fn.__module__ == mod.__name__:
                out[f"{p.stem}.{name}"] = fn
    return out


def dump(transcript):
    """A transcript as lines that compare."""
    return [json.dumps(e, sort_keys=True, ensure_ascii=False) for e in transcript]


def expected(key, golden, overrides=None):
    """What scenario FILE.NAME must give: (lines, whether they are a deliberate difference, whether that is stale)."""
    recording = Path(golden) / f"{key}.json"
    want = dump(json.loads(recording.read_text())) if recording.exists() else ["<no golden>"]
    override = Path(overrides) / f"{key}.json" if overrides else None
    if override is None or not override.exists():
        return want, False, False
    accepted = dump(json.loads(override.read_text())["transcript"])
    return accepted, True, accepted == want


def difference(want, got):
    """Lines of a unified diff; empty when they are equal."""
    return [line[:600] for line in difflib.unified_diff(want, got, "reference", "this", lineterm="", n=1)]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("mode", choices=["record", "check", "show"])
    ap.add_argument("files", nargs="+")
    ap.add_argument("--host", default="127.0.0.1")
    ap.add_argument("--port", type=int, default=6789)
    ap.add_argument("--http-port", type=int, default=6790)
    ap.add_argument("-o", "--golden", default="golden", type=Path)
    ap.add_argument("-k", default="")
    ap.add_argument("-j", type=int, default=1)
    ap.add_argument("--no-slow", action="store_true")
    ap.add_argument("-v", "--verbose", action="store_true")
    ap.add_argument("--quiet-diff", action="store_true", help="names only")
    ap.add_argument("--overrides", type=Path, help="deliberate differences: NAME.json with reason and transcript")
    ap.add_argument(
        "--accept",
        metavar="REASON",
        help="with --overrides and -k NAME: write this server's transcript "
        "as the deliberate difference of each selected scenario",
    )
    args = ap.parse_args()
    fns = {k: f for k, f in load(args.files).items() if args.k in k and not (args.no_slow and f.opts.get("slow"))}
    failed = passed = deliberate = 0

    def run(item):
        key, fn = item
        return key, run_one(fn, args.host, args.port, args.http_port, args.verbose)

    with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
        for key, transcript in pool.map(run, fns.items()):
            got = dump(transcript)
            if args.mode == "record":
                args.golden.mkdir(parents=True, exist_ok=True)
                (args.golden / f"{key}.json").write_text("[\n" + ",\n".join(got) + "\n]\n")
                print("recorded", key, len(transcript))
                continue
            if args.mode == "show":
                print(f"== {key}")
                print("\n".join(got))
                continue
            want, _, _ = expected(key, args.golden)
            if args.accept and args.overrides and args.k and want != got:
                args.overrides.mkdir(parents=True, exist_ok=True)
                reason = json.dumps({"reason": args.accept})[:-1]
                text = reason + ',\n"transcript": [\n' + ",\n".join(got) + "\n]}\n"
                (args.overrides / f"{key}.json").write_text(text)
            want, overridden, stale = expected(key, args.golden, args.overrides)
            if stale:
                print(f"STALE {key}: its override equals the recording")
            if want == got:
                passed += 1
                deliberate += overridden
                continue
            failed += 1
            print(f"DIFF {key}")
            if not args.quiet_diff:
                for line in difference(want, got):
                    print("   ", line)
    if args.mode == "check":
        if args.overrides:
            print(f"{deliberate} of them deliberate differences")
        print(f"{passed} passed, {failed} failed")
        sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
