"""Time zones by name, and the zone of the machine."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

from bunqueue_core.model.errors import ValidationError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"[A-Za-z0-9_+\-/]{1,64}")

#: Entries of a time-zone database that are no names of places or offsets: other readings of the same zones, and placeholders.
_NO_ZONES: Final = ("posix/", "right/", "systemv/", "localtime", "posixrules", "factory")

#: Names that need no database, so that a machine without one can still run schedules in UTC.
_UTC_NAMES: Final = frozenset(("utc", "etc/utc", "gmt", "etc/gmt", "uct", "etc/uct", "zulu", "etc/zulu"))


class SystemZone(tzinfo):
    """The machine's own zone, as the C library knows it (``TZ``, ``/etc/localtime``), with all its past and coming changes."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        if moment is None:
            return None
        return moment.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return None if moment is None else moment.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, moment: datetime) -> datetime:
        seconds = (moment.replace(tzinfo=UTC) - _EPOCH).total_seconds()
        return datetime.fromtimestamp(seconds).replace(tzinfo=self)  # keeps ``fold``

    def __repr__(self) -> str:
        return "SystemZone()"


@lru_cache(maxsize=1)
def _names_in_lower_case() -> Mapping[str, str]:
    """The database's names by their lower-case form: a listing of hundreds of files, read once."""
    return {name.lower(): name for name in zoneinfo.available_timezones()}


def find_zone(name: str | None) -> tzinfo:
    """The zone called ``name`` in the IANA database, in any case; without a name (None, empty) the machine's own.

    Zones come from the system's database, or from the ``tzdata`` package where the system has none.

    Raises:
        ValidationError: ``Bun.cron: unknown time zone '<name>'`` (the text that published clients know).
    """
    if name is None or name == "":
        return SystemZone()
    if isinstance(name, str) and _NAME.fullmatch(name) is not None:
        lower = name.lower()
        if not lower.startswith(_NO_ZONES):
            zone = _load(name)
            if zone is None:
                proper = _names_in_lower_case().get(lower)
                zone = None if proper is None else _load(proper)
            if zone is not None:
                return zone
            if lower in _UTC_NAMES:
                return UTC
    shown = str(name)
    raise ValidationError(f"Bun.cron: unknown time zone '{shown if len(shown) <= 100 else shown[:100] + '…'}'")


def _load(name: str) -> zoneinfo.ZoneInfo | None:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # a folder of the database is an OSError
        return None
