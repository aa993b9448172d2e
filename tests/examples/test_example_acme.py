"""The plugin with an example of each small hook passes its own tests when it is built and installed."""

from __future__ import annotations

import pytest
from example_projects import build

pytestmark = pytest.mark.timeout(300)


def test_it_passes_its_tests_when_it_is_installed(tmp_path_factory: pytest.TempPathFactory) -> None:
    project = build("acme-bunqueue", tmp_path_factory.mktemp("acme"))

    result = project.run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project.source), directory=project.source.parent
    )

    assert result.returncode == 0, result.stdout[-8000:] + result.stderr
    assert " passed" in result.stdout
    assert "skipped" not in result.stdout
