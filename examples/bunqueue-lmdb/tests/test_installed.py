"""The one test that every plugin needs: is it installed, and found?"""

from __future__ import annotations

from bunqueue_core.plugins import PluginManager


def test_the_plugin_is_installed() -> None:
    assert PluginManager().driver("lmdb").name == "lmdb"
