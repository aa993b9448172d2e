"""Write the synchronous twin of every ``*_async.py`` of the client and of its tests.

The asynchronous module is the source. Its twin has the same name without the suffix; it is committed, so that people can
read it and tools need no build step. What remains different between the two worlds lives in ``client/_acompat.py`` and in the
two transports and crews, so that dropping ``async`` and ``await`` and renaming a few words is all that is needed here.

    python tools/async_to_sync.py            write the twins
    python tools/async_to_sync.py --check    fail if a twin is stale, missing or has lost its source

The result is formatted by ruff, whose version is pinned in the development extras.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Folders whose ``*_async.py`` have a twin.
FOLDERS = ("bunqueue_core/client", "tests/client")

#: First line of every twin; also how a twin without a source is found.
HEADER = "# Written by tools/async_to_sync.py from {source}: edit that file and run the tool, not this one.\n"

#: Words that are called differently in the synchronous world. One that is never met is an error: it has lost its reason.
RENAMES = {
    "AEvent": "Event",
    "AInbox": "Inbox",
    "ALock": "Lock",
    "AStandIn": "StandIn",
    "AsyncioCrew": "ThreadCrew",
    "AsyncioTransport": "ThreadTransport",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "_crew_asyncio": "_crew_threads",
    "_transport_asyncio": "_transport_threads",
    "abeside": "beside",
    "acan_spawn": "can_spawn",
    "aclose": "close",
    "afinished": "finished",
    "aopen_broker": "open_broker",
    "asettled": "settled",
    "aspawn": "spawn",
}

#: Words that vanish together with the blanks after them.
DROPPED = ("async", "await")


def convert(source: str, stems: Iterable[str], used: set[str]) -> str:
    """Turn the text of an asynchronous module into its synchronous twin's.

    Args:
        source: the module's text.
        stems: names of all asynchronous modules (``queue_async``); each loses its suffix where it is imported.
        used: receives the words of :data:`RENAMES` that were met.

    Returns:
        The text, not yet formatted.
    """
    modules = {stem: stem.removesuffix("_async") for stem in stems}
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    edits: list[tuple[tuple[int, int], tuple[int, int], str]] = []
    for index, token in enumerate(tokens):
        if token.type != tokenize.NAME:
            continue
        if token.string in DROPPED:
            following = tokens[index + 1]
            if following.start[0] != token.end[0]:
                raise SystemExit(f"line {token.start[0]}: '{token.string}' ends its line")
            edits.append((token.start, following.start, ""))
        elif token.string in RENAMES:
            used.add(token.string)
            edits.append((token.start, token.end, RENAMES[token.string]))
        elif token.string in modules:
            edits.append((token.start, token.end, modules[token.string]))
    for start, end, text in reversed(edits):
        row = start[0] - 1
        lines[row] = lines[row][: start[1]] + text + lines[row][end[1] :]
    return "".join(lines)


def tidy(text: str, path: Path) -> str:
    """Sort the imports and format, as ruff does it for the rest of the project."""
    for command in (("check", "--fixable", "I,UP,RUF100", "--fix", "--exit-zero", "--quiet"), ("format",)):
        run = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        if run.returncode != 0:
            raise SystemExit(f"{path}: ruff {command[0]} failed:\n{run.stdout}{run.stderr}")
        text = run.stdout
    return text


def main(arguments: list[str] | None = None) -> int:
    """Write or check the twins; the exit code is 1 if a check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if something would change")
    check = parser.parse_args(arguments).check

    sources = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*_async.py"))
    stems = [path.stem for path in sources]
    used: set[str] = set()
    problems: list[str] = []
    twins: set[Path] = set()
    for path in sources:
        twin = path.with_name(path.stem.removesuffix("_async") + ".py")
        twins.add(twin)
        header = HEADER.format(source=path.name)
        text = tidy(header + convert(path.read_text(), stems, used), twin)
        if twin.exists() and twin.read_text() == text:
            continue
        if check:
            problems.append(f"{twin.relative_to(ROOT)} is not what {path.name} gives")
        else:
            twin.write_text(text)
            print(f"wrote {twin.relative_to(ROOT)}")
    marker = HEADER.split("{", maxsplit=1)[0]
    for folder in FOLDERS:
        problems.extend(
            f"{path.relative_to(ROOT)} has no asynchronous source any more"
            for path in sorted((ROOT / folder).glob("*.py"))
            if path not in twins and path.read_text().startswith(marker)
        )
    problems.extend(f"the rename of '{word}' is not used any more" for word in RENAMES if word not in used)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
