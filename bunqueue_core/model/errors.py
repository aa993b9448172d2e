"""The errors that bunqueue raises, in one hierarchy.

Each class has a stable ``code`` for programs, an HTTP status and says whether the same call may succeed
later (``retryable``). The text of a :class:`CommandError` is part of the wire protocol: published clients match on it.
Driver details (SQL, hosts, SQLSTATE) never stand in a message; the cause is chained inside the process only.
"""

from __future__ import annotations

from collections.abc import Sequence


class BunqueueError(Exception):
    """Base of every error that bunqueue raises."""

    code = "BQ-ERROR"
    http_status = 500
    retryable = False


class ConfigurationError(BunqueueError):
    """The configuration cannot be used; ``problems`` lists everything that is wrong with it at once.

    Each problem names the setting, the value, what is allowed and how to mend it.
    """

    code = "BQ-CONFIGURATION"

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        if len(self.problems) == 1:
            text = self.problems[0]
        else:
            text = "\n".join(["Invalid server configuration:", *(f" - {problem}" for problem in self.problems)])
        super().__init__(text)

    def __reduce__(self) -> tuple[type[ConfigurationError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class PluginError(ConfigurationError):
    """A plugin could not be loaded or registered; the message names it and the mend."""

    code = "BQ-PLUGIN"


class CommandError(BunqueueError):
    """The broker refused a command; ``str(error)`` is exactly the text on the wire.

    ``position`` is set where one member of a bulk is at fault: the wire then puts ``jobs[<position>]: `` before the text.
    """

    code = "BQ-COMMAND"
    http_status = 400
    position: int | None = None


class ValidationError(CommandError, ValueError):
    """A field of a command has a value that is not allowed."""

    code = "BQ-VALIDATION"


class NotFound(CommandError, LookupError):
    """The job, schedule, worker or webhook does not exist, or is not in a state that the command applies to."""

    code = "BQ-NOT-FOUND"
    http_status = 404


class Conflict(CommandError):
    """The command contradicts the present state (deduplication, group capacity, dependency rules)."""

    code = "BQ-CONFLICT"
    http_status = 409


class LeaseLost(CommandError):
    """The lock token is missing, wrong or belongs to an earlier delivery of the job."""

    code = "BQ-LEASE-LOST"
    http_status = 409


class AuthenticationError(CommandError):
    """The token is wrong, or none was given where one is needed."""

    code = "BQ-AUTHENTICATION"
    http_status = 401


class CapabilityError(CommandError):
    """The storage driver does not offer the operation; ``operation`` and ``driver`` say which and whose."""

    code = "BQ-CAPABILITY"
    http_status = 501

    def __init__(self, operation: str, driver: str) -> None:
        super().__init__(f"{operation} is not offered by storage driver '{driver}'")
        self.operation = operation
        self.driver = driver

    def __reduce__(self) -> tuple[type[CapabilityError], tuple[str, str]]:
        return type(self), (self.operation, self.driver)


class StorageUnavailable(CommandError):
    """The storage cannot take writes now (disk full, database away). Nothing of the command was applied or lost."""

    code = "BQ-STORAGE-UNAVAILABLE"
    http_status = 503
    retryable = True

    def __init__(self, reason: str) -> None:
        super().__init__(f"Storage unavailable: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[type[StorageUnavailable], tuple[str]]:
        return type(self), (self.reason,)


class BackendBusy(CommandError):
    """Too many operations wait for the storage already; the same call may succeed shortly."""

    code = "BQ-BACKEND-BUSY"
    http_status = 503
    retryable = True

    def __init__(self, reason: str) -> None:
        super().__init__(f"Backend busy: {reason}; retry later")
        self.reason = reason

    def __reduce__(self) -> tuple[type[BackendBusy], tuple[str]]:
        return type(self), (self.reason,)


class BrokerClosed(CommandError):
    """The broker is stopping or has stopped; it takes no new work."""

    code = "BQ-CLOSED"
    http_status = 503
    retryable = True


class JournalError(BunqueueError):
    """A storage driver could not read or write. ``disk_full`` and ``busy`` say why where the driver knows.

    Raised by journal drivers only; the write buffer retries it and never shows it to a client.
    """

    code = "BQ-JOURNAL"

    def __init__(self, message: str, *, disk_full: bool = False, busy: bool = False) -> None:
        super().__init__(message)
        self.disk_full = disk_full
        self.busy = busy


class ConnectionClosedError(BunqueueError):
    """A client's connection could not be opened, or was lost while a command was under way."""

    code = "BQ-CONNECTION"
    retryable = True


class CommandTimeoutError(BunqueueError):
    """No answer arrived in time. The command may or may not have been applied."""

    code = "BQ-TIMEOUT"
    retryable = True


class SerializationError(BunqueueError, TypeError):
    """A payload cannot be encoded as MessagePack; raised before anything is written."""

    code = "BQ-SERIALIZATION"


class UnrecoverableError(BunqueueError):
    """Raise it in a processor: the job is not tried again and goes to the dead-letter queue."""

    code = "BQ-UNRECOVERABLE"


class DelayedError(BunqueueError):
    """Raise it in a processor: the job goes back to ``delayed``, which does not count as a failure."""

    code = "BQ-DELAYED"


class RateLimitError(BunqueueError):
    """Raise it in a processor after limiting a group: the job has already been handed back."""

    code = "BQ-RATE-LIMIT"
