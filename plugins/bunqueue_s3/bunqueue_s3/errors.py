"""What an object store answers, as errors that say what it refused, and no secrets."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    ResponseStreamingError,
    SSLError,
)
from botocore.exceptions import (
    ConnectionError as StoreConnectionError,
)

from bunqueue_core.backup.errors import StoreError
from bunqueue_core.model.errors import ConfigurationError

#: Codes with which a store asks to try again, whatever the status that comes with them.
_PASSING_CODES: Final = frozenset(
    {
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "RequestTimeTooSkewed",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
    }
)

#: Codes that say that the configuration is wrong, with the settings to mend.
_MENDS: Final[dict[str, str]] = {
    "NoSuchBucket": "backup.bucket (S3_BUCKET)",
    "InvalidBucketName": "backup.bucket (S3_BUCKET)",
    "InvalidAccessKeyId": "backup.accessKeyId (S3_ACCESS_KEY_ID)",
    "SignatureDoesNotMatch": "backup.secretAccessKey (S3_SECRET_ACCESS_KEY)",
    "ExpiredToken": "backup.sessionToken (S3_SESSION_TOKEN)",
    "InvalidToken": "backup.sessionToken (S3_SESSION_TOKEN)",
    "AccessDenied": "the permissions of the access key",
    "AllAccessDisabled": "the permissions of the access key",
    "AuthorizationHeaderMalformed": "backup.region (S3_REGION)",
    "PermanentRedirect": "backup.region (S3_REGION) or backup.endpoint (S3_ENDPOINT)",
    "IllegalLocationConstraintException": "backup.region (S3_REGION)",
}

_CREDENTIALS: Final = (
    "no usable credentials: set backup.accessKeyId (S3_ACCESS_KEY_ID) and backup.secretAccessKey (S3_SECRET_ACCESS_KEY), or give"
    " the process an AWS profile or role"
)

#: A secret that is shorter is none; taking it out would only make the text unreadable.
_SECRET_CHARS: Final = 4

#: Longest text of a store that is passed on.
_TEXT_CHARS: Final = 200

#: The exceptions of a call that :func:`store_error` knows.
CALL_ERRORS: Final = (ClientError, BotoCoreError, aiohttp.ClientError, OSError, ValueError)


def code_of(error: BaseException) -> str:
    """The store's error code, or its HTTP status as text; empty if it did not answer."""
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code") or _status(error))


def is_missing(error: BaseException) -> bool:
    """Whether the object, not the bucket, does not exist."""
    return code_of(error) in ("NoSuchKey", "NotFound", "404")


def is_unknown(error: BaseException) -> bool:
    """Whether the store does not know the operation."""
    return code_of(error) in ("NotImplemented", "MethodNotAllowed", "501", "405")


def is_timeout(error: BaseException) -> bool:
    """Whether no answer came in time, so that what was asked for may still happen."""
    return isinstance(error, TimeoutError | ReadTimeoutError)


def store_error(doing: str, error: BaseException, secrets: Iterable[str]) -> StoreError:
    """The error for ``error``, which may itself hold signed requests: its text is never shown.

    Args:
        doing: the operation as S3 calls it.
        error: what the call raised.
        secrets: what must not be in the text.
    """
    if isinstance(error, ClientError):
        code, status = code_of(error), _status(error)
        text = _clean(str(error.response.get("Error", {}).get("Message") or ""), secrets)
        said = f": {text}" if text and text != code else ""
        passing = status >= 500 or status == 429 or code in _PASSING_CODES
        return StoreError(f"the store refused {doing}: {code} (HTTP {status}){said}", retryable=passing)
    if isinstance(error, NoCredentialsError | PartialCredentialsError | ProfileNotFound):
        return StoreError(_CREDENTIALS)
    if isinstance(error, CredentialRetrievalError):
        return StoreError("the credentials could not be fetched from where the AWS chain found them", retryable=True)
    if isinstance(error, ParamValidationError | ValueError):
        return StoreError(f"{doing} cannot be sent: {_clean(str(error), secrets)}")
    if isinstance(error, SSLError):
        return StoreError(f"the store's certificate is not accepted ({doing})")
    if isinstance(
        error, StoreConnectionError | HTTPClientError | aiohttp.ClientError | ResponseStreamingError | OSError
    ):
        return StoreError(f"the store cannot be reached ({doing}: {_cause(error)})", retryable=True)
    return StoreError(f"{doing} failed: {type(error).__name__}", retryable=False)


def configuration_error(error: BaseException, message: str) -> ConfigurationError | None:
    """The configuration error, if ``error`` says that the configuration is wrong, with the setting to mend."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError | ProfileNotFound):
        return ConfigurationError(f"Backups to S3: {_CREDENTIALS}")
    if isinstance(error, ParamValidationError | ValueError):
        return ConfigurationError(f"Backups to S3: {message}; mend backup.bucket (S3_BUCKET) or backup.endpoint")
    if isinstance(error, SSLError):
        return ConfigurationError(
            f"Backups to S3: {message}; mend backup.endpoint (S3_ENDPOINT), or name its authority in AWS_CA_BUNDLE"
        )
    if not isinstance(error, ClientError) or _status(error) >= 500 or code_of(error) in _PASSING_CODES:
        return None
    code = code_of(error)
    mend = _MENDS.get(code)
    if mend is None:
        mend = {
            "403": "the access key and its permissions",
            "404": "backup.bucket (S3_BUCKET) or backup.endpoint (S3_ENDPOINT)",
            "301": "backup.region (S3_REGION) or backup.endpoint (S3_ENDPOINT)",
        }.get(str(_status(error)), "the settings of backup")
    return ConfigurationError(f"Backups to S3: {message}; mend {mend}")


def _status(error: ClientError) -> int:
    metadata: Any = error.response.get("ResponseMetadata", {})
    return int(metadata.get("HTTPStatusCode", 0))


def _cause(error: BaseException) -> str:
    """The innermost reason that names itself, without addresses and signed URLs."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        inner = getattr(current, "kwargs", {}).get("error")
        current = inner if isinstance(inner, BaseException) else current.__cause__ or current.__context__
    for each in reversed(chain):
        if isinstance(each, OSError) and each.errno and not isinstance(each, aiohttp.ClientError):
            return (
                os.strerror(each.errno) if each.errno > 0 else str(each.strerror)
            )  # negative ones are of name lookups
    return type(chain[-1]).__name__


def _clean(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if len(secret) >= _SECRET_CHARS:
            text = text.replace(secret, "***")
    text = " ".join(text.split())
    return text if len(text) <= _TEXT_CHARS else text[: _TEXT_CHARS - 1] + "…"


__all__ = ["CALL_ERRORS", "code_of", "configuration_error", "is_missing", "is_timeout", "is_unknown", "store_error"]
