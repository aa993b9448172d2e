"""Wide numbers deep inside payloads."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from bunqueue_core.model.payload import MAX_DEPTH, Packer, decode


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_wide_integers_survive_at_any_depth(wrap: Any) -> None:
    value: Any = 2**40
    for _ in range(MAX_DEPTH - 1):
        value = wrap(value)
    assert decode(Packer().pack(value)) == value


def test_packing_leaves_its_input_alone() -> None:
    value = {"a": [2**40, {"b": 2**41}], 2**42: True}
    Packer().pack(value)
    assert value == {"a": [2**40, {"b": 2**41}], 2**42: True}
    assert isinstance(value["a"][0], int)  # type: ignore[index]


def test_extensions_stay_what_they_are_beside_wide_integers() -> None:
    value = [msgpack.ExtType(5, b"abc"), msgpack.Timestamp(1, 2), 2**40]
    assert msgpack.unpackb(Packer().pack(value)) == [msgpack.ExtType(5, b"abc"), msgpack.Timestamp(1, 2), 2.0**40]
