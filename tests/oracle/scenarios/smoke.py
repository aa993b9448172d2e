"""The first scenarios: one job through its life."""

from oracle import scenario


@scenario
def push_pull_ack(s):
    s.cmd(cmd="PUSH", queue=s.q(), name="send", data={"to": "a@example.com"})
    got = s.cmd(cmd="PULL", queue=s.q(), owner="w1", lockTtl=5000)
    s.cmd(cmd="ACK", id=got["job"]["id"], token=got["token"], result={"sent": True})
    s.cmd(cmd="GetState", id=got["job"]["id"])
    s.cmd(cmd="GetResult", id=got["job"]["id"])
    s.cmd(cmd="GetJobCounts", queue=s.q())


@scenario
def ack_with_wrong_token(s):
    s.cmd(cmd="PUSH", queue=s.q(), name="t", data={"x": 1})
    got = s.cmd(cmd="PULL", queue=s.q(), owner="w1")
    s.cmd(cmd="ACK", id=got["job"]["id"], token="wrong")
    s.cmd(cmd="GetState", id=got["job"]["id"])


@scenario
def pull_empty(s):
    s.cmd(cmd="PULL", queue=s.q(), owner="w1", timeout=0)
    s.cmd(cmd="PULLB", queue=s.q(), count=5, owner="w1", timeout=0)
