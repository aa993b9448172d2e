"""LMDB storage for bunqueue: one file, one process."""

from bunqueue_lmdb.settings import LmdbStorage

__all__ = ["LmdbStorage"]
