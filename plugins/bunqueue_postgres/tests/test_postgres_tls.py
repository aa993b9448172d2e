"""TLS to the database: certificates are checked in full, against a named authority or against the host's trust store."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from bunqueue_postgres.broker import PostgresBroker
from bunqueue_postgres.settings import PostgresStorage
from bunqueue_postgres.testing import PostgresServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from postgres_contexts import open_context

from bunqueue_core.model.errors import BunqueueError, ConfigurationError
from bunqueue_core.model.job import JobSpec

#: Debian's PostgreSQL is built with TLS; those of the wheels are not.
INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)


@dataclass(frozen=True)
class Site:
    """A server with TLS whose certificate is for ``localhost``.

    Attributes:
        server: it.
        authority: file with the certificate of the authority that signed the server's.
        stranger: file with that of another authority of the same name.
    """

    server: PostgresServer
    authority: Path
    stranger: Path

    def url(self, parameters: str, host: str = "localhost") -> str:
        return f"postgresql://postgres@{host}:{self.server.port}/postgres?{parameters}"


def authority(path: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Make an authority, and write its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate("Test Authority", key, None).sign(key, hashes.SHA256())
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Certificate | None
) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer is not None else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not INSTALLED:
        pytest.skip("no PostgreSQL with TLS: Debian's packages are not installed")
    folder = tmp_path_factory.mktemp("tls")
    issuer, issuer_key = authority(folder / "authority.pem")
    authority(folder / "stranger.pem")
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    certificate = (
        _certificate("localhost", key, issuer).add_extension(names, critical=False).sign(issuer_key, hashes.SHA256())
    )
    server = PostgresServer(bin_directory=INSTALLED[0].parent)
    try:
        data = server.directory / "data"
        owner = data.stat()
        for name, content in (
            ("server.crt", certificate.public_bytes(serialization.Encoding.PEM)),
            (
                "server.key",
                key.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                ),
            ),
        ):
            path = data / name
            path.touch(mode=0o600)
            path.write_bytes(content)
            os.chown(path, owner.st_uid, owner.st_gid)
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET ssl = on")
        server.stop()
        server.start()
        yield Site(server, folder / "authority.pem", folder / "stranger.pem")
    finally:
        server.close()


async def works(url: str) -> None:
    """A broker starts and takes a job, and every connection that it has is encrypted."""
    broker = PostgresBroker(PostgresStorage.model_validate({"url": url, "broker_id": "tls"}), open_context())
    await broker.start()
    try:
        assert len((await broker.push("q", [JobSpec("n", None)])).ids) == 1
        async with await psycopg.AsyncConnection.connect(url.partition("?")[0]) as admin:
            cursor = await admin.execute(
                "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'bunqueue:tls'"
            )
            assert set(await cursor.fetchall()) == {(True,)}
    finally:
        await broker.close()


async def refused(url: str) -> BunqueueError:
    """The error of a start that must fail."""
    broker = PostgresBroker(PostgresStorage.model_validate({"url": url}), open_context())
    with pytest.raises(BunqueueError) as caught:
        await broker.start()
    await broker.close()
    assert "localhost" not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)
    return caught.value


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the URL says what is trusted."""
    for name in ("PGSSLMODE", "PGSSLROOTCERT", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)


async def test_a_named_authority_is_trusted(site: Site) -> None:
    await works(site.url(f"sslmode=verify-full&sslrootcert={site.authority}"))


@pytest.mark.parametrize("parameters", ["sslmode=verify-full&sslrootcert=system", "sslrootcert=system"])
async def test_the_hosts_trust_store_is_trusted(site: Site, monkeypatch: pytest.MonkeyPatch, parameters: str) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(site.authority))
    await works(site.url(parameters))


async def test_full_verification_alone_means_the_hosts_trust_store(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", str(site.authority))
    await works(site.url("sslmode=verify-full"))


async def test_another_authority_of_the_same_name_is_refused(site: Site) -> None:
    error = await refused(site.url(f"sslmode=verify-full&sslrootcert={site.stranger}"))
    assert isinstance(error, ConfigurationError)
    assert "certificate is not trusted" in str(error)
    assert "sslrootcert" in str(error)


async def test_an_authority_that_the_host_does_not_trust_is_refused(site: Site) -> None:
    error = await refused(site.url("sslmode=verify-full&sslrootcert=system"))
    assert isinstance(error, ConfigurationError)
    assert "certificate is not trusted" in str(error)


async def test_a_certificate_for_another_host_is_refused(site: Site) -> None:
    error = await refused(site.url(f"sslmode=verify-full&sslrootcert={site.authority}", host="127.0.0.1"))
    assert isinstance(error, ConfigurationError)
    assert "certificate is for another host" in str(error)


async def test_a_missing_file_of_authorities_is_refused(site: Site, tmp_path: Path) -> None:
    error = await refused(site.url(f"sslmode=verify-full&sslrootcert={tmp_path / 'none.pem'}"))
    assert isinstance(error, ConfigurationError)
    assert "no root certificate" in str(error)


@pytest.mark.parametrize("mode", ["require", "verify-ca", "prefer"])
async def test_the_trust_store_is_not_used_with_less_than_full_verification(
    site: Site, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(site.authority))
    error = await refused(site.url(f"sslmode={mode}&sslrootcert=system"))
    assert isinstance(error, ConfigurationError)
    assert "sslmode" in str(error)
