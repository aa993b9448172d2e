"""Values for people: each setting with its value and where it came from. Secrets are masked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from bunqueue_core.config.resolution import Resolution
from bunqueue_core.config.schema import Setting
from bunqueue_core.config.settings import Settings

MASK: Final = "***"

# Everything up to the last @ is taken for credentials: a password may hold a slash that nobody encoded.
_CREDENTIALS = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^:@/\s]*)(?P<password>:\S*)?@(?=[^@\s]*$)", re.IGNORECASE
)
_SECRET_PARAMETER = re.compile(r"(?P<name>[?&][a-z_-]*(?:password|secret|token|key)=)[^&\s]*", re.IGNORECASE)


def mask(setting: Setting, value: Any) -> Any:
    """``value`` as it may be shown: a secret's content and a URL's password are replaced by ``***``."""
    if setting.secret:
        if isinstance(value, list | tuple):
            return [MASK for _ in value]
        return MASK if value else value
    return _mask_any(value)


def rows(resolution: Resolution) -> list[tuple[str, Any, str]]:
    """(key, shown value, origin) of every setting that applies, in the order of the sections."""
    sections = list(Settings.model_fields)
    known = sorted(resolution.known.items(), key=lambda item: sections.index(item[1].section))
    return [(key, mask(setting, resolution.values[key]), str(resolution.origins[key])) for key, setting in known]


def as_text(value: Any) -> str:
    """A shown value in one line, as JSON where JSON has it."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _mask_any(value: Any) -> Any:
    if isinstance(value, str):
        masked = _CREDENTIALS.sub(lambda match: f"{match['scheme']}{match['user']}:{MASK}@", value)
        return _SECRET_PARAMETER.sub(lambda match: f"{match['name']}{MASK}", masked)
    if isinstance(value, Mapping):
        return {key: _mask_any(item) if not _sounds_secret(str(key)) else MASK for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask_any(item) for item in value]
    return value


def _sounds_secret(name: str) -> bool:
    return re.search(r"password|secret|token|api_?key", name, re.IGNORECASE) is not None
