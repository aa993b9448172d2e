"""Global options: recognised anywhere on the command line, before ``--``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bunqueue_core.cli.output import fatal, warn

DEFAULT_HOST: Final = "localhost"
DEFAULT_PORT: Final = 6789

_HOST_VARIABLES: Final = ("HOST", "BUNQUEUE_HOST", "BQ_HOST")
_PORT_VARIABLES: Final = ("TCP_PORT", "BUNQUEUE_TCP_PORT", "BQ_TCP_PORT")
_TOKEN_VARIABLES: Final = ("BQ_TOKEN", "BUNQUEUE_TOKEN")

_VALUED: Final[Mapping[str, str]] = {
    "-H": "host",
    "--host": "host",
    "-p": "port",
    "--port": "port",
    "-t": "token",
    "--token": "token",
    "--tls-ca": "tls_ca",
}
_SWITCHES: Final[Mapping[str, str]] = {
    "--tls": "tls",
    "--tls-no-verify": "tls_no_verify",
    "--json": "json",
    "--help": "help",
}
_ATTACHED = re.compile(r"-[Hpt][^-=].*")


@dataclass(slots=True)
class Globals:
    """The global options of one call.

    Attributes:
        given: (option as typed, value) by name; a value of None was missing.
        json: print JSON.
        help: print help instead of doing anything.
        version: print the version instead of doing anything.
        tls: connect with TLS.
        tls_no_verify: connect with TLS and do not check the certificate.
    """

    given: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    json: bool = False
    help: bool = False
    version: bool = False
    tls: bool = False
    tls_no_verify: bool = False
    _endpoint: tuple[str, int] | None = field(default=None, init=False, repr=False)

    def endpoint(self, environ: Mapping[str, str]) -> tuple[str, int]:
        """(host, port) that client commands connect to: options, then the environment, then ``localhost:6789``.

        Ends the command if an option's port is no port. A bad port in the environment only warns: orchestrators inject such values.
        """
        if self._endpoint is None:  # once, so that it warns once
            self._endpoint = self._host(environ), self._port(environ)
        return self._endpoint

    def token(self, environ: Mapping[str, str]) -> str | None:
        """The token of client commands: the option, then the environment; None for none."""
        option, value = self.given.get("token", ("", None))
        if value:
            return value
        if option:
            spelling = f"{_long(option)}=" if value == "" else _long(option)
            warn(f"{spelling} requires a value. Token not set.")
        return next((environ[name] for name in _TOKEN_VARIABLES if environ.get(name)), None)

    def tls_option(self) -> bool | Mapping[str, object] | None:
        """How client commands encrypt; None: not at all."""
        option, authority = self.given.get("tls_ca", ("", None))
        if option and not authority:
            warn("--tls-ca requires a file path. Option ignored.")
        if not (self.tls or self.tls_no_verify or authority):
            return None
        return {
            **({"ca_file": authority} if authority else {}),
            **({"verify": False} if self.tls_no_verify else {}),
        } or True

    def _host(self, environ: Mapping[str, str]) -> str:
        option, value = self.given.get("host", ("", None))
        if value:
            return value
        if option and value is None:
            warn(f"{_long(option)} requires a value. Using {DEFAULT_HOST}.")
            return DEFAULT_HOST
        return next((environ[name] for name in _HOST_VARIABLES if environ.get(name)), DEFAULT_HOST)

    def _port(self, environ: Mapping[str, str]) -> int:
        option, value = self.given.get("port", ("", None))
        if value:
            try:
                return read_port(value, option)
            except ValueError as error:
                fatal(str(error))
        name = next((name for name in _PORT_VARIABLES if environ.get(name, "").strip()), None)
        if name is None:
            return DEFAULT_PORT
        try:
            return read_port(environ[name], name)
        except ValueError:
            warn(
                f'Invalid env port "{environ[name]}" ({name}: expected a whole number between 1 and 65535). '
                f"Using {DEFAULT_PORT}."
            )
            return DEFAULT_PORT


def read_port(text: str, name: str) -> int:
    """Read a port in the grammar of the server's configuration.

    Raises:
        ValueError: it is none; the text names it, as typed.
    """
    # Imported when there is one: the settings' models take longer to load than most commands take.
    from bunqueue_core.config.grammar import Misread, read_text
    from bunqueue_core.config.schema import Setting

    port = Setting(
        section="client",
        name="port",
        variables=_PORT_VARIABLES,
        kind="integer",
        optional=False,
        unit=None,
        minimum=1,
        maximum=65535,
        choices=(),
        secret=False,
        numeric_text=True,
        required=False,
        default=DEFAULT_PORT,
        description="Port of the server.",
    )
    try:
        return int(read_text(port, text, name))
    except Misread as error:
        raise ValueError(str(error)) from None


def split(arguments: Sequence[str]) -> tuple[Globals, list[str]]:
    """Take the global options out of ``arguments``; the rest keeps its order."""
    options = Globals()
    rest: list[str] = []
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        index += 1
        if argument == "--":
            rest.extend(arguments[index:])
            break
        if argument in ("--version", "-v") and (argument == "--version" or index == 1):
            options.version = True
        elif argument == "-h" and index == 1:
            options.help = True
        elif argument in _SWITCHES:
            setattr(options, _SWITCHES[argument], True)
        elif argument in _VALUED and not (argument == "-t" and _own_timeout(rest)):
            following = arguments[index] if index < len(arguments) else None
            if following is None or following.startswith("-"):
                options.given[_VALUED[argument]] = (argument, None)
            else:
                options.given[_VALUED[argument]] = (argument, following)
                index += 1
        elif argument.split("=", 1)[0] in _VALUED and argument.startswith("--"):
            option, value = argument.split("=", 1)
            options.given[_VALUED[option]] = (option, value)
        else:
            if _ATTACHED.fullmatch(argument):
                warn(
                    f'"{argument}" looks like a short flag with an attached value; '
                    f'use the separated form ("{argument[:2]} {argument[2:]}") or the long form.'
                )
            rest.append(argument)
    return options, rest


def _own_timeout(rest: Sequence[str]) -> bool:
    """After ``pull`` and ``job wait``, ``-t`` is the command's own time-out."""
    return rest[:1] == ["pull"] or rest[:2] == ["job", "wait"]


def _long(option: str) -> str:
    return {"-H": "--host", "-p": "--port", "-t": "--token"}.get(option, option)
