"""Which certificate authorities a checked TLS connection to the database trusts.

libpq reads ``sslrootcert=system`` as "the authorities that OpenSSL trusts by default". psycopg's wheels carry an OpenSSL that looks
for them in a folder of its own, which no system has; so the place where this system keeps them is named instead.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any, Final

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

#: libpq's file of authorities where ``sslrootcert`` names none.
_OWN_FILE: Final = Path("~/.postgresql/root.crt")

_SYSTEM: Final = "system"
_VERIFY_FULL: Final = "verify-full"


def trusted(url: str) -> dict[str, Any]:
    """Connection arguments, beside ``url``, for a URL that wants its certificate checked against what the host trusts.

    That is ``sslrootcert=system``, and also ``sslmode=verify-full`` with no authorities named anywhere. Whatever else the URL says
    is left to libpq, which refuses ``system`` with a mode that checks less than host names.

    Returns:
        Nothing where libpq needs no help.
    """
    try:
        parameters = conninfo_to_dict(url)
    except ProgrammingError:
        return {}  # connecting says what is wrong with it
    mode = parameters.get("sslmode") or os.environ.get("PGSSLMODE")
    root = parameters.get("sslrootcert") or os.environ.get("PGSSLROOTCERT")
    if root == _SYSTEM:
        wanted = mode in (None, _VERIFY_FULL)
    else:
        wanted = root is None and mode == _VERIFY_FULL and not _OWN_FILE.expanduser().exists()
    store = ssl.get_default_verify_paths().cafile
    if not wanted or store is None:
        return {}
    return {"sslmode": _VERIFY_FULL, "sslrootcert": store}
