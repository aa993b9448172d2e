"""Frames out of a byte stream: whatever the pieces, the same bodies; nothing beyond the limit."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bunqueue_core.server.tcp.framing import MAX_FRAME_BYTES, Framer, FrameTooLarge


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


BODIES = [b"", b"a", b"hello world", b"\x00" * 300, b"end"]
STREAM = b"".join(frame(body) for body in BODIES)


def test_the_limit_is_64_mebibytes() -> None:
    assert MAX_FRAME_BYTES == 67_108_864


def test_all_at_once() -> None:
    framer = Framer()
    assert list(framer.feed(STREAM)) == BODIES
    assert framer.buffered == 0


def test_every_split_point() -> None:
    for split in range(len(STREAM) + 1):
        framer = Framer()
        assert [*framer.feed(STREAM[:split]), *framer.feed(STREAM[split:])] == BODIES
        assert framer.buffered == 0


def test_one_byte_at_a_time() -> None:
    framer = Framer()
    got: list[bytes] = []
    for index in range(len(STREAM)):
        got += framer.feed(STREAM[index : index + 1])
    assert got == BODIES


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=8), st.randoms(use_true_random=False))
def test_random_pieces(bodies: list[bytes], chance: random.Random) -> None:
    stream = b"".join(frame(body) for body in bodies) + frame(b"unfinished")[:7]
    framer = Framer()
    got: list[bytes] = []
    position = 0
    while position < len(stream):
        size = chance.randint(1, 12)
        got += framer.feed(stream[position : position + size])
        position += size
    assert got == bodies
    assert framer.buffered == 7


def test_what_is_kept_is_what_has_arrived() -> None:
    framer = Framer()
    assert framer.feed(struct.pack(">I", MAX_FRAME_BYTES)) == []
    assert framer.buffered == 4
    framer.feed(b"x" * 10)
    assert framer.buffered == 14


def test_a_body_at_the_limit_passes_and_one_beyond_does_not() -> None:
    framer = Framer(limit=5)
    assert list(framer.feed(frame(b"12345"))) == [b"12345"]
    with pytest.raises(FrameTooLarge, match=r"^Frame too large: 6 bytes exceeds maximum 5$"):
        framer.feed(frame(b"123456"))


def test_the_prefix_alone_is_enough_to_refuse() -> None:
    framer = Framer()
    assert framer.feed(b"\xff\xff") == []
    with pytest.raises(FrameTooLarge, match="4294967295 bytes"):
        framer.feed(b"\xff\xff")


def test_bodies_before_an_oversized_prefix_of_the_same_bytes_are_lost() -> None:
    with pytest.raises(FrameTooLarge):
        Framer(limit=5).feed(frame(b"ok") + struct.pack(">I", 6))
