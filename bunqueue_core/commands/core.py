"""Greeting, authentication, life sign."""

from __future__ import annotations

from typing import Final

from bunqueue_core.commands.session import Session
from bunqueue_core.commands.table import ABSENT, Reply, Value, command
from bunqueue_core.model.errors import AuthenticationError

#: Version of the wire protocol; it does not change with ours.
PROTOCOL_VERSION: Final = 3

CAPABILITIES: Final = ("pipelining", "separate-job-name")


@command(
    "Hello",
    returns={"protocolVersion": "3", "capabilities": "list of strings", "server": '"bunqueue"', "version": "string"},
)
def hello(session: Session) -> Reply:
    """Name the protocol and the server. Nothing is negotiated; what the client says of itself is ignored."""
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "capabilities": list(CAPABILITIES),
        "server": "bunqueue",
        "version": session.services.version,
    }


@command("Auth", open=True)
def auth(session: Session, token: Value = ABSENT) -> Reply:
    """Authenticate the connection for its lifetime. A server without tokens refuses every token, and needs none."""
    if not session.services.accepts(token):
        session.services.tell("auth:failed", clientId=session.id)
        raise AuthenticationError("Invalid token")
    session.authenticated = True
    return None


@command("Ping", returns={"data": "{pong: true, time: epoch ms}"})
def ping(session: Session) -> Reply:
    """Answer at once with the server's clock."""
    return {"data": {"pong": True, "time": session.services.ports.now()}}
