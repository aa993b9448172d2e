"""Reads the fenced blocks of Markdown pages and runs them as a reader would.

- ``python``: run as a script in the page's own directory. A first line ``# name.py`` is the file's name.
- ``text`` right after a ``python`` block: what that block prints; after an ``sh`` block: lines that its last command prints, with
  others in between or not.
- ``toml``: parsed; a first line ``# bunqueue.config.toml`` says that it is a configuration, which is then checked.
- ``sh``: run line by line. ``bunqueue start`` is started on free ports, given time to listen, and stopped; ``make``, ``pip`` and
  what stands in ``.venv`` are checked against what the repository offers: running them would install the repository into itself,
  or take hours. ``pip install -e`` of a folder that the page has made does install it, for the page's later blocks.

Comments before a block:

- ``<!-- with a server -->`` starts one, in memory, whose ports take the place of 6789 and 6790 in the block; commands without a
  port find it too.
- ``<!-- file: path -->`` makes a file of the block instead of running it; ``<!-- more of: path -->`` appends to one, after a blank
  line.
- ``<!-- shown only: reason -->`` leaves a block out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bunqueue_core.config import load_settings
from bunqueue_core.plugins import PluginManager

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

#: Longest run of one block, seconds.
PATIENCE_S = 60.0

#: Folder in a page's directory that takes what the page installs.
INSTALLED = ".installed"

_BLOCK = re.compile(
    r"(?P<marks>(?:^<!-- .*? -->\n+)*)^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass
class Block:
    """A fenced block.

    Attributes:
        page: the page it stands on.
        line: number of its first line.
        language: what follows the fence.
        text: what is between the fences.
        marks: comments right before it.
        output: what it prints, if the page says so.
    """

    page: Path
    line: int
    language: str
    text: str
    marks: list[str] = field(default_factory=list)
    output: str | None = None

    @property
    def shown_only(self) -> bool:
        return any(mark.startswith("shown only:") for mark in self.marks)

    @property
    def file(self) -> tuple[str, bool] | None:
        """The file that the block makes, below the page's directory, and whether it goes on with one; None if it makes none."""
        for mark in self.marks:
            how, _, path = mark.partition(": ")
            if how in ("file", "more of"):
                return path, how == "more of"
        return None


def pages() -> list[Path]:
    """Every page for people: README files and ``docs``."""
    found = [
        ROOT / "README.md",
        *ROOT.glob("plugins/*/README.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
    ]
    return sorted(path for path in found if ".venv" not in path.parts)


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order; an output belongs to the block before it."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    end = 0
    for match in _BLOCK.finditer(text):
        language = match["language"]
        between = text[end : match.start()].strip()
        if language == "text" and found and found[-1].language in ("python", "sh") and not between:
            found[-1].output = match["text"]
        else:
            marks = re.findall(r"<!-- (.*?) -->", match["marks"])
            found.append(Block(page, text.count("\n", 0, match.start("text")), language, match["text"], marks))
        end = match.end()
    return found


def run_page(page: Path, directory: Path) -> None:
    """Run every block of a page, in order, in ``directory``.

    Raises:
        AssertionError: a block fails, or prints something else than the page says.
    """
    for block in blocks(page):
        if block.shown_only:
            continue
        if block.file is not None:
            _write(block, *block.file, directory)
            continue
        with _server(block, directory) as (text, variables):
            if block.language == "python":
                _run_python(block, text, directory)
            elif block.language == "toml":
                _check_toml(block, text, directory)
            elif block.language == "sh":
                printed = ""
                for command in _commands(text):
                    printed = _run_command(block, command, directory, variables)
                rest = iter(printed.splitlines())
                for line in (block.output or "").splitlines():
                    assert any(line.strip() in other for other in rest), f"{_where(block)} prints:\n{printed}"


def files_of(page: Path) -> dict[str, str]:
    """What the page's reader has written at its end: the files that its blocks make, by path."""
    files: dict[str, str] = {}
    for block in blocks(page):
        if block.file is not None:
            path, more = block.file
            files[path] = (files[path] + "\n" if more else "") + block.text
    return files


def environment(directory: Path | None = None) -> dict[str, str]:
    """This process's environment without anything that configures bunqueue, and with its commands in the path.

    Args:
        directory: of a page; what the page has installed is found, too.
    """
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR", "USER") if name in os.environ}
    if directory is not None and (directory / INSTALLED).exists():
        kept["PYTHONPATH"] = str(directory / INSTALLED)
    return {**kept, "PATH": f"{BIN}:{os.environ.get('PATH', '')}", "PYTHONWARNINGS": "error"}


@contextmanager
def listening(arguments: list[str], directory: Path, variables: dict[str, str]) -> Iterator[dict[str, str]]:
    """Run ``bunqueue start`` until it listens, give its addresses, and stop it as an operator would."""
    command = [str(BIN / "bunqueue"), *arguments, "--tcp-port", "0", "--http-port", "0", "--host", "127.0.0.1"]
    with subprocess.Popen(
        command, cwd=directory, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            seen: list[str] = []
            found: dict[str, str] = {}
            for line in process.stdout:
                seen.append(line)
                row = re.fullmatch(r"\s*[●○•] (?P<label>.{12})(?P<value>.*)\n", line)
                if row:
                    found[row["label"].strip()] = row["value"]
                if "Plugins" in found:
                    break
            assert "Plugins" in found, "the server did not start:\n" + "".join(seen)
            yield found
        finally:
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, f"the server ended with {process.returncode}:\n{rest}"


@contextmanager
def _server(block: Block, directory: Path) -> Iterator[tuple[str, dict[str, str]]]:
    if "with a server" not in block.marks:
        yield block.text, {}
        return
    with listening(["start"], directory, environment(directory)) as found:
        tcp, http = (found[label].rsplit(":", 1)[1] for label in ("TCP", "HTTP"))
        yield block.text.replace("6789", tcp).replace("6790", http), {"BUNQUEUE_TCP_PORT": tcp, "HTTP_PORT": http}


def _run_python(block: Block, text: str, directory: Path) -> None:
    named = re.match(r"# (\S+\.py)\n", text)
    path = directory / (named[1] if named else "snippet.py")
    path.write_text(text, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, path.name],
        cwd=directory,
        env=environment(directory),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, f"{_where(block)} fails:\n{result.stderr}"
    if block.output is not None:
        assert result.stdout == block.output, f"{_where(block)} prints:\n{result.stdout}"


def _check_toml(block: Block, text: str, directory: Path) -> None:
    tomllib.loads(text)
    named = re.match(r"# (bunqueue\.config\.toml)\n", text)
    if named:
        path = directory / named[1]
        path.write_text(text, encoding="utf-8")
        load_settings(PluginManager(), path=path, environ={})


def _commands(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def _run_command(block: Block, command: str, directory: Path, server: dict[str, str]) -> str:
    """Run, or check, a command; gives what it prints."""
    words = shlex.split(command, comments=True)
    variables = {**environment(directory), **server}
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name, value = words.pop(0).split("=", 1)
        variables[name] = value
    if words[:3] == ["python", "-m", "pytest"]:
        # As with pytest alone: the plugins that this repository's own tests use would have their say.
        variables.pop("PYTHONWARNINGS")
        variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    if words[0] == "make":
        _check_make(block, words[1:])
    elif words[:3] == ["pip", "install", "-e"] and (directory / words[3] / "pyproject.toml").exists():
        _install(block, directory / words[3], directory)
    elif words[:2] == ["pip", "install"]:
        _check_install(block, words[2:])
    elif words[0].startswith(".venv/"):
        _check_paths(block, words[1:])
    elif words[0] == "bunqueue" and (len(words) == 1 or words[1] == "start" or words[1].startswith("-")):
        with listening(words[1:], directory, variables):
            pass
    else:
        result = subprocess.run(
            ["bash", "-c", command],
            cwd=directory,
            env=variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert result.returncode == 0, f"{_where(block)}: {command}\n{result.stdout}{result.stderr}"
        return result.stdout
    return ""


def _write(block: Block, path: str, more: bool, directory: Path) -> None:
    target = directory / path
    assert target.exists() == more, f"{_where(block)}: {path} is {'not there yet' if more else 'there already'}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a", encoding="utf-8") as file:
        file.write(("\n" if more else "") + block.text)


def _install(block: Block, project: Path, directory: Path) -> None:
    """Install a project for the rest of the page, apart from this process's own environment; changes to its files count at once."""
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--upgrade")
    result = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(directory / INSTALLED), str(project)],
        cwd=directory,
        env={name: value for name, value in environment().items() if name != "PYTHONWARNINGS"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.returncode == 0, f"{_where(block)}: the project cannot be installed\n{result.stdout}{result.stderr}"
    for package in project.iterdir():
        installed = directory / INSTALLED / package.name
        if (package / "__init__.py").exists() and installed.exists():
            shutil.rmtree(installed)
            installed.symlink_to(package)


def _check_make(block: Block, words: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for word in words:
        assert "=" in word or word in targets, f"{_where(block)}: the Makefile has no target {word}"


def _check_install(block: Block, words: list[str]) -> None:
    distributions = {}
    for manifest in [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]:
        project = tomllib.loads(manifest.read_text(encoding="utf-8"))["project"]
        distributions[project["name"]] = set(project.get("optional-dependencies", {}))
    for word in words:
        if word.startswith("-"):
            continue
        match = re.fullmatch(r"([a-z0-9-]+)(?:\[([a-z0-9,]+)\])?", word)
        assert match, f"{_where(block)}: {word} is no requirement"
        if match[1].startswith("bunqueue-") and match[1] != "bunqueue-client":
            assert match[1] in distributions, f"{_where(block)}: there is no distribution {match[1]}"
            extras = set(match[2].split(",")) if match[2] else set()
            assert extras <= distributions[match[1]], f"{_where(block)}: {match[1]} has no extra {extras}"


def _check_paths(block: Block, words: list[str]) -> None:
    for word in words:
        if "/" in word and not word.startswith("-"):
            assert (ROOT / word.split("::")[0]).exists(), f"{_where(block)}: there is no {word}"


def _where(block: Block) -> str:
    return f"{block.page.relative_to(ROOT)}, line {block.line}"
