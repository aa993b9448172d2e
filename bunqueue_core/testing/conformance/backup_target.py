"""Whether a backup target keeps the promises of :class:`~bunqueue_core.plugins.drivers.BackupStore`.

A target's author derives one class and hands over an open, empty store::

    class TestTape(BackupTargetConformance):
        @pytest.fixture
        def store(self):
            store = TapeStore(...)
            yield store
            store.close()
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from typing import Final

import pytest

from bunqueue_core.backup.errors import ObjectMissing
from bunqueue_core.plugins.drivers import BackupStore

#: Bytes of a large object: more than stores take in one request or buffer.
LARGE: Final = 9 * 1024 * 1024 + 17


class BackupTargetConformance:
    """Every case that a target is held to. Override ``store``."""

    @pytest.fixture
    def store(self) -> Iterator[BackupStore]:
        """An open store without any object."""
        raise NotImplementedError("override the fixture 'store'")

    def key(self, store: BackupStore, name: str) -> str:
        """A key under the store's prefix."""
        return f"{store.prefix}{name}"

    def test_a_store_that_can_be_used_passes_its_check(self, store: BackupStore) -> None:
        store.check()
        assert list(store.list()) == []

    def test_what_was_put_is_got(self, store: BackupStore) -> None:
        key = self.key(store, "one.db")
        store.put(key, [b"abc", b"", b"def"], size=6, content_type="application/gzip")
        assert b"".join(store.get(key)) == b"abcdef"

    def test_an_object_may_be_empty(self, store: BackupStore) -> None:
        key = self.key(store, "empty.db")
        store.put(key, [], size=0)
        assert b"".join(store.get(key)) == b""

    def test_a_large_object_comes_back_equal(self, store: BackupStore) -> None:
        key = self.key(store, "large.db")
        content = random.Random(7).randbytes(LARGE)
        store.put(key, (content[at : at + 300_000] for at in range(0, LARGE, 300_000)), size=LARGE)
        digest = hashlib.sha256()
        longest = 0
        for chunk in store.get(key):
            digest.update(chunk)
            longest = max(longest, len(chunk))
        assert digest.digest() == hashlib.sha256(content).digest()
        assert longest <= 4 * 1024 * 1024
        assert [(name, size) for name, size, _ in store.list()] == [(key, LARGE)]

    def test_the_size_need_not_be_known(self, store: BackupStore) -> None:
        key = self.key(store, "unsized.db")
        store.put(key, [b"x" * 1000] * 10)
        assert len(b"".join(store.get(key))) == 10_000

    def test_putting_again_replaces(self, store: BackupStore) -> None:
        key = self.key(store, "again.db")
        store.put(key, [b"first"])
        store.put(key, [b"second, and longer"])
        assert b"".join(store.get(key)) == b"second, and longer"

    def test_the_listing_tells_key_size_and_time(self, store: BackupStore) -> None:
        before = time.time_ns() // 1_000_000
        keys = [self.key(store, name) for name in ("a.db", "a.db.meta.json", "b.db")]
        for size, key in enumerate(keys, 1):
            store.put(key, [b"x" * size])
        listed = {key: (size, modified) for key, size, modified in store.list()}
        assert {key: size for key, (size, _) in listed.items()} == dict(zip(keys, (1, 2, 3), strict=True))
        # A store may know seconds only, and have a clock of its own.
        assert all(abs(modified - before) < 300_000 for _, modified in listed.values())

    @pytest.mark.parametrize("size", [2, LARGE], ids=["small", "large"])
    def test_an_upload_that_ends_early_leaves_no_object(self, store: BackupStore, size: int) -> None:
        def chunks() -> Iterator[bytes]:
            for _ in range(0, size, 300_000):
                yield bytes(min(size, 300_000))
            raise RuntimeError("the reader failed")

        key = self.key(store, "broken.db")
        with pytest.raises(RuntimeError, match="the reader failed"):
            store.put(key, chunks(), size=size)
        assert list(store.list()) == []
        with pytest.raises(ObjectMissing):
            list(store.get(key))

    def test_an_upload_that_ends_early_leaves_the_object_that_was_there(self, store: BackupStore) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"new"
            raise RuntimeError("the reader failed")

        key = self.key(store, "kept.db")
        store.put(key, [b"old"])
        with pytest.raises(RuntimeError, match="the reader failed"):
            store.put(key, chunks())
        assert b"".join(store.get(key)) == b"old"

    @pytest.mark.parametrize("claimed", [2, 4])
    def test_an_object_of_another_size_is_not_published(self, store: BackupStore, claimed: int) -> None:
        key = self.key(store, "short.db")
        with pytest.raises(Exception, match=r"3 bytes instead of"):
            store.put(key, [b"abc"], size=claimed)
        assert list(store.list()) == []

    def test_a_missing_object_is_named(self, store: BackupStore) -> None:
        key = self.key(store, "nothing.db")
        with pytest.raises(ObjectMissing) as caught:
            list(store.get(key))
        assert caught.value.key == key

    def test_deleting_is_idempotent(self, store: BackupStore) -> None:
        key = self.key(store, "gone.db")
        store.put(key, [b"x"])
        store.delete(key)
        store.delete(key)
        assert list(store.list()) == []

    def test_a_listing_has_every_object(self, store: BackupStore) -> None:
        keys = {self.key(store, f"{number:04}.db") for number in range(120)}
        for key in keys:
            store.put(key, [b"x"])
        assert {key for key, _, _ in store.list()} == keys

    def test_tidying_leaves_objects_alone(self, store: BackupStore) -> None:
        key = self.key(store, "bunqueue-2026-11-30T15-51-26-791Z.db")
        store.put(key, [b"x"])
        store.tidy(2**45)
        assert b"".join(store.get(key)) == b"x"

    def test_a_download_may_be_left(self, store: BackupStore) -> None:
        key = self.key(store, "left.db")
        store.put(key, [bytes(2_000_000)])
        chunks = store.get(key)
        assert next(chunks)
        chunks.close()  # type: ignore[attr-defined]
        assert len(b"".join(store.get(key))) == 2_000_000

    def test_it_closes_twice(self, store: BackupStore) -> None:
        store.close()
        store.close()


__all__ = ["BackupTargetConformance"]
