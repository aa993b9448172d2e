"""Buckets of an S3 API over HTTP (moto's)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator

import boto3  # type: ignore[import-untyped]
import pytest
from bunqueue_s3 import S3Backup
from moto.server import ThreadedMotoServer

#: Makes settings of a new, empty bucket.
NewBucket = Callable[..., S3Backup]


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def bucket_names() -> Iterator[str]:
    return (f"bucket-{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def new_bucket(moto_url: str, bucket_names: Iterator[str]) -> NewBucket:
    def make(**options: object) -> S3Backup:
        name = next(bucket_names)
        client = boto3.client(
            "s3",
            endpoint_url=moto_url,
            region_name="us-east-1",
            aws_access_key_id="setup",
            aws_secret_access_key="setup-secret",
        )
        client.create_bucket(Bucket=name)
        client.close()
        given = {"endpoint": moto_url, "access_key_id": "AKIATEST", "secret_access_key": "correct-horse", **options}
        return S3Backup(bucket=name, **given)  # type: ignore[arg-type]

    return make
