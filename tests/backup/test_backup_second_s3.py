"""The same again on a second implementation of the S3 API: s3rver, in JavaScript, installed by npm for the run. A campaign."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bunqueue_s3 import S3Backup
from bunqueue_s3.store import S3Store
from fixtures.backups import Bench, jobs_in

from bunqueue_core.testing.conformance.backup_target import BackupTargetConformance

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed"),
]

PACKAGE = "s3rver@3.7.1"

PROGRAM = """
const S3rver = require('s3rver');
new S3rver({
  port: 0, address: '127.0.0.1', silent: true, directory: process.argv[2], configureBuckets: [{name: 'vault'}],
}).run().then((address) => console.log(address.port));
"""


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Backup]:
    """Settings of a bucket there."""
    folder = tmp_path_factory.mktemp("second")
    (folder / "data").mkdir()
    (folder / "run.cjs").write_text(PROGRAM)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", PACKAGE], cwd=folder, check=True, capture_output=True)
    # Its continuation tokens are made with a cipher that OpenSSL keeps among the legacy ones.
    command = ["node", "--openssl-legacy-provider", "run.cjs", str(folder / "data")]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield S3Backup(
            bucket="vault",
            endpoint=f"http://127.0.0.1:{port}",
            access_key_id="S3RVER",
            secret_access_key="S3RVER",
        )
        process.kill()


@pytest.fixture(scope="module")
def lasting(second: S3Backup) -> Iterator[S3Store]:
    store = S3Store(second)
    yield store
    store.close()


@pytest.fixture
def store(lasting: S3Store) -> S3Store:
    for key, _, _ in lasting.list():
        lasting.delete(key)
    return lasting


class TestSecond(BackupTargetConformance):
    @pytest.fixture
    def store(self, lasting: S3Store) -> S3Store:
        for key, _, _ in lasting.list():
            lasting.delete(key)
        return lasting


def test_there_and_back(tmp_path: Path, template: Path, store: S3Store) -> None:
    bench = Bench(tmp_path, template)
    backups = bench.backups(store, retention=2)
    for _ in range(3):
        outcome = backups.run()
        assert outcome.success
        bench.now += 10
    assert len(store.list()) == 4
    assert backups.verify().success
    bench.path.unlink()
    assert backups.restore(str(outcome.key)).success
    assert jobs_in(bench.path) == 20
