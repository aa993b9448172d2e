"""Whatever a file, the environment or a flag holds, it is read or refused by name; it never breaks the reader."""

from __future__ import annotations

import json
from typing import Any

from config_standins import StandIns
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bunqueue_core.config import resolve
from bunqueue_core.config.resolution import FLAGS
from bunqueue_core.config.schema import core_settings
from bunqueue_core.config.show import rows
from bunqueue_core.plugins import PluginManager

PLUGINS = PluginManager({"stand-ins": StandIns()}, entry_points=[])
SECTIONS = [*core_settings(), "storage", "cloud", "sever"]
KEYS = sorted(
    {setting.key.split(".")[1] for fields in core_settings().values() for setting in fields.values()}
    | {"driver", "dataPath", "data_path", "url", "poolSize", "bucket", "store", "lock", "zzz", ""}
)
VARIABLES = sorted(
    {name for fields in core_settings().values() for setting in fields.values() for name in setting.variables}
    | {
        "BUNQUEUE_DATA_PATH",
        "DATA_PATH",
        "BUNQUEUE_POSTGRES_URL",
        "BUNQUEUE_STORAGE_DRIVER",
        "BUNQUEUE_POSTGRES_POOL_SIZE",
    }
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["sqlite", "postgres", "memory", "1", "5ms", "text", "info", "postgres://h", "*", float("nan")])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
files = st.dictionaries(
    st.sampled_from(SECTIONS) | st.text(max_size=8),
    values | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=8), values, max_size=6),
    max_size=5,
)
texts = st.text(max_size=20) | st.from_regex(r"\s?[+-]?\d{1,20}(\.\d+)?\s?(ms|MB)?( #.*)?", fullmatch=True)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    file=files,
    environ=st.dictionaries(st.sampled_from(VARIABLES), texts, max_size=6),
    flags=st.dictionaries(st.sampled_from(sorted(FLAGS)), texts, max_size=4),
)
def test_every_input_is_read_or_refused(file: dict[str, Any], environ: dict[str, str], flags: dict[str, str]) -> None:
    resolution = resolve(PLUGINS, file=file, environ=environ, flags=flags)

    assert (resolution.settings is None) == bool(resolution.problems or resolution.conflicts)
    assert all(text for text in (*resolution.problems, *resolution.conflicts, *resolution.warnings))
    if resolution.settings is not None:
        again = type(resolution.settings).model_fields
        assert set(again) == set(resolution.settings.model_dump())
    json.dumps(rows(resolution), default=str)


@settings(max_examples=200, deadline=None)
@given(
    number=st.integers(min_value=1, max_value=2**53 - 1),
    style=st.sampled_from(["{}", " {} ", "+{}", "{}.9", "{}ms", "{} # x"]),
)
def test_every_number_in_range_survives_every_way_to_write_it(number: int, style: str) -> None:
    resolution = resolve(PLUGINS, environ={"STATS_INTERVAL_MS": style.format(number)})

    assert resolution.require().timeouts.stats == number
