"""Finding and reading configuration files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bunqueue_core.config import ConfigError, load_config_file, load_settings
from bunqueue_core.plugins import PluginManager

PYTHON = "from bunqueue_core import define_config\nconfig = define_config(server={'tcp_port': 1})\n"
TOML = "[server]\ntcpPort = 2\n"
JSON = '{"server": {"tcp_port": 3}}'


def write(directory: Path, **files: str) -> None:
    for suffix, text in files.items():
        (directory / f"bunqueue.config.{suffix}").write_text(text)


def test_no_file_is_no_error(tmp_path: Path) -> None:
    assert load_config_file(directory=tmp_path) is None


@pytest.mark.parametrize(
    ("files", "found", "port"),
    [
        ({"py": PYTHON, "toml": TOML, "json": JSON}, "bunqueue.config.py", 1),
        ({"toml": TOML, "json": JSON}, "bunqueue.config.toml", 2),
        ({"json": JSON}, "bunqueue.config.json", 3),
    ],
)
def test_the_first_name_of_the_list_is_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plugins: PluginManager,
    files: dict[str, str],
    found: str,
    port: int,
) -> None:
    write(tmp_path, **files)
    monkeypatch.chdir(tmp_path)

    file = load_config_file()

    assert file is not None
    assert file.path == tmp_path / found
    assert load_settings(plugins, environ={}).server.tcp_port == port


def test_parents_are_not_searched(tmp_path: Path) -> None:
    write(tmp_path, toml=TOML)
    (tmp_path / "inner").mkdir()

    assert load_config_file(directory=tmp_path / "inner") is None


def test_a_named_file_is_the_only_one_that_is_read(tmp_path: Path, plugins: PluginManager) -> None:
    write(tmp_path, py=PYTHON)
    (tmp_path / "other.toml").write_text("[server]\nhost = '127.0.0.1'\n")

    settings = load_settings(plugins, path=tmp_path / "other.toml", environ={})

    assert (settings.server.host, settings.server.tcp_port) == ("127.0.0.1", 6789)


def test_a_named_file_that_is_missing_is_refused_by_its_absolute_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config_file("absent.toml", directory=tmp_path)

    assert str(caught.value) == f"Config file not found: {tmp_path / 'absent.toml'}"


def test_a_plain_dictionary_is_as_good_as_define_config(tmp_path: Path, plugins: PluginManager) -> None:
    write(tmp_path, py="config = {'server': {'tcpPort': 9}}")

    settings = load_settings(plugins, path=tmp_path / "bunqueue.config.py", environ={})

    assert settings.server.tcp_port == 9


def test_a_python_file_may_import_what_lies_beside_it(tmp_path: Path, plugins: PluginManager) -> None:
    (tmp_path / "ports_of_this_test.py").write_text("TCP = 11\n")
    write(tmp_path, py="from ports_of_this_test import TCP\nconfig = {'server': {'tcpPort': TCP}}")
    before = list(sys.path)

    settings = load_settings(plugins, path=tmp_path / "bunqueue.config.py", environ={})

    assert settings.server.tcp_port == 11
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.py", "x = 1\nraise RuntimeError('no secret found')\n", "a.py, line 2: RuntimeError: no secret found"),
        ("a.py", "import sys\nsys.exit('enough')\n", "a.py, line 2: SystemExit: enough"),
        ("a.py", "config = (\n", "a.py, line 1: SyntaxError: '(' was never closed"),
        (
            "a.py",
            "x = 1\n",
            "a.py does not define 'config' (expected: config = define_config(...), from bunqueue_core)",
        ),
        ("a.py", "config = 5\n", "a.py: 'config' is a int (expected what define_config(...) returns)"),
        ("a.toml", "[server\n", "Config file a.toml is not valid TOML: "),
        ("a.json", "{", "Config file a.json is not valid JSON: "),
        ("a.json", "[1]", "Config file a.json must hold an object with sections"),
        ("a.yaml", "x: 1", "Config file a.yaml must end in .py, .toml or .json"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, name: str, text: str, problem: str) -> None:
    (tmp_path / name).write_text(text)

    with pytest.raises(ConfigError) as caught:
        load_config_file(name, directory=tmp_path)

    assert str(caught.value).startswith(problem)


def test_an_unknown_section_of_define_config_is_reported_when_it_is_loaded(
    tmp_path: Path, plugins: PluginManager
) -> None:
    write(tmp_path, py="from bunqueue_core import define_config\nconfig = define_config(sever={}, auth={'token': 1})")

    with pytest.raises(ConfigError) as caught:
        load_settings(plugins, path=tmp_path / "bunqueue.config.py", environ={})

    assert caught.value.problems == (
        'Unknown config key "sever"; did you mean "server"?',
        'Unknown config key "auth.token"; did you mean "auth.tokens"?',
    )
