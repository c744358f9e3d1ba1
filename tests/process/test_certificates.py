"""Certificates that koord makes: for months, renewed while a process lives, for the names that are served, in nobody else's reach."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from cryptography import x509

from koord import seams
from koord.apiserver import main
from koord.apiserver.config import ServerConfig
from koord.process import certificates
from koord.process.errors import ConfigurationError
from koord.process.life import Life
from koord.process.serving import Serving, tls_context, tls_source
from roles.manager.webhooks.certs import renew
from roles.manager.webhooks.certstore import CertFolder
from tests.support import patience

pytestmark = pytest.mark.feature("BEY-SEC-01")


class Later(seams.System):
    """The machine's clocks, some days ahead."""

    days = 0.0

    def now(self) -> float:
        return super().now() + self.days * 86400

    def monotonic(self) -> float:
        return super().monotonic() + self.days * 86400


@pytest.fixture
def later():  # type: ignore[no-untyped-def]
    clock = Later()
    token = seams.use(clock)
    yield clock
    seams.leave(token)


def read(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def loaded(context: ssl.SSLContext) -> int:
    """The serial number that a client of this context sees."""
    mine, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    near = client.wrap_bio(theirs, mine)
    far = context.wrap_bio(mine, theirs, server_side=True)
    for _ in range(3):
        for side in (near, far):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    der = near.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def test_months_names_and_modes(tmp_path: Path) -> None:
    made = certificates.ensure(tmp_path / "c", "10.1.2.3", ["koord.example"])
    cert, ca = read(made.cert_file), x509.load_pem_x509_certificate(made.ca)
    assert cert.not_valid_after_utc - cert.not_valid_before_utc < datetime.timedelta(days=100)
    assert ca.not_valid_after_utc - ca.not_valid_before_utc < datetime.timedelta(days=400)
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"koord.example", "localhost"} <= set(names.get_values_for_type(x509.DNSName))
    assert not [name for name in names.get_values_for_type(x509.DNSName) if name.startswith("kubernetes")]
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "c").iterdir()} == {0o600}
    cert.verify_directly_issued_by(ca)
    assert certificates.ensure(tmp_path / "c", "10.1.2.3", ["koord.example"]).cert_file.read_bytes() == made.cert_file.read_bytes()
    assert read(certificates.ensure(tmp_path / "c", "10.1.2.4").cert_file).serial_number != cert.serial_number, "for another host"


def test_they_are_renewed_in_time_and_who_trusts_the_authority_goes_on(tmp_path: Path, later: Later) -> None:
    first = certificates.ensure(tmp_path, "127.0.0.1")
    serial = read(first.cert_file).serial_number
    later.days = certificates.SERVER_DAYS - certificates.RENEW_DAYS - 1
    assert read(certificates.ensure(tmp_path, "127.0.0.1").cert_file).serial_number == serial
    later.days += 2
    second = certificates.ensure(tmp_path, "127.0.0.1")
    assert read(second.cert_file).serial_number != serial
    assert second.ca == first.ca
    read(second.cert_file).verify_directly_issued_by(x509.load_pem_x509_certificate(first.ca))
    later.days = certificates.CA_DAYS - certificates.SERVER_DAYS + 1
    third = certificates.ensure(tmp_path, "127.0.0.1")
    assert third.ca != first.ca, "an authority that ends before the certificate would"
    second.cert_file.write_bytes(b"half a certif")
    assert certificates.days_left(certificates.ensure(tmp_path, "127.0.0.1").cert_file.read_bytes()) > 80


@pytest.mark.parametrize("written", range(5))
@pytest.mark.parametrize("days", [0, certificates.CA_DAYS])
def test_what_is_cut_off_in_the_middle_is_made_anew(
    written: int, days: int, tmp_path: Path, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.ensure(tmp_path, "127.0.0.1")
    later.days = days
    done: list[Path] = []

    def write(file: Path, content: bytes, write: Any = certificates.write) -> None:
        if len(done) == written:
            raise KeyboardInterrupt
        done.append(file)
        write(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(certificates, "write", write)
        with pytest.raises(KeyboardInterrupt):
            certificates.ensure(tmp_path, "10.1.2.3")
    made = certificates.ensure(tmp_path, "10.1.2.3")
    made.context()
    cert = read(made.cert_file)
    cert.verify_directly_issued_by(x509.load_pem_x509_certificate(made.ca))
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "10.1.2.3" in [str(address) for address in names.get_values_for_type(x509.IPAddress)]


def test_a_renewal_that_fails_is_tried_again_and_the_process_goes_on(
    tmp_path: Path, later: Later, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    context = certificates.ensure(tmp_path, "127.0.0.1").context()
    later.days = certificates.SERVER_DAYS - certificates.RENEW_DAYS + 1
    seen: list[int] = []

    def hour(_: float) -> Any:
        seen.append(loaded(context))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return asyncio.sleep(0)

    def write(file: Path, content: bytes, write: Any = certificates.write) -> None:
        if len(seen) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, content)

    monkeypatch.setattr(later, "sleep", hour)
    monkeypatch.setattr(certificates, "write", write)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(certificates.keep(tmp_path, "127.0.0.1", context))
    assert seen[0] == seen[1] != seen[2]
    assert "No space left on device" in caplog.text


@pytest.mark.parametrize("kept", [True, False])
def test_a_running_port_renews_its_own(kept: bool, tmp_path: Path, later: Later) -> None:
    source = tls_source(Serving("127.0.0.1", cert_dir=str(tmp_path / "c") if kept else ""))
    serial = loaded(source())
    later.days = 1
    assert loaded(source()) == serial
    later.days = certificates.SERVER_DAYS - certificates.RENEW_DAYS + 1
    assert loaded(source()) != serial


def test_a_running_port_takes_a_given_certificate_that_was_renewed(tmp_path: Path, later: Later) -> None:
    made = certificates.ensure(tmp_path / "c", "127.0.0.1")
    source = tls_source(Serving(cert_file=str(made.cert_file), key_file=str(made.key_file)))
    serial = loaded(source())
    other = certificates.ensure(tmp_path / "d", "127.0.0.1")
    made.cert_file.write_bytes(other.cert_file.read_bytes())
    later.days += 0.1
    assert loaded(source()) == serial, "key and certificate do not fit yet"
    made.key_file.write_bytes(other.key_file.read_bytes())
    later.days += 0.1
    assert loaded(source()) == read(other.cert_file).serial_number


class Hasty(Later):
    """Nobody sleeps long."""

    looks = 0

    async def sleep(self, seconds: float) -> None:
        self.looks += seconds >= 60
        await super().sleep(min(seconds, 0.01))


@pytest.mark.parametrize("given", [True, False])
def test_an_api_server_follows_its_certificate_through_mishaps(given: bool, tmp_path: Path) -> None:
    made = certificates.ensure(tmp_path / "c", "127.0.0.1")
    other = certificates.ensure(tmp_path / "d", "127.0.0.1")
    pair = (made.cert_file, made.key_file) if given else None
    clock, life = Hasty(), Life()
    own = tmp_path / "certs"

    async def run() -> None:
        flags = main.Flags(ServerConfig(token="t"), 0, "127.0.0.1", tmp_path / "kubeconfig", None, True, pair)
        serving = asyncio.create_task(main._run(flags, tmp_path, life))
        async with asyncio.timeout(patience.seconds(20)):
            while not (tmp_path / "kubeconfig").exists():
                await asyncio.sleep(0.01)
            config = yaml.safe_load((tmp_path / "kubeconfig").read_text())
            port = urlsplit(config["clusters"][0]["cluster"]["server"]).port

            async def seen() -> int:
                pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
                return x509.load_pem_x509_certificate(pem.encode()).serial_number

            first = await seen()
            if given:
                made.cert_file.write_bytes(other.cert_file.read_bytes())
            else:
                own.chmod(0o777)
                clock.days = certificates.SERVER_DAYS - certificates.RENEW_DAYS + 1
            looks = clock.looks
            while clock.looks < looks + 3 and not life.stopping.is_set():
                await asyncio.sleep(0.01)
            assert (life.failure, await seen()) == ("", first)
            made.key_file.write_bytes(other.key_file.read_bytes())
            if not given:
                own.chmod(0o700)
            while await seen() == first:
                await asyncio.sleep(0.01)
        life.stop()
        await serving
        for step in reversed(life._steps):
            await step.cleanup()

    token = seams.use(clock)
    try:
        asyncio.run(run())
    finally:
        seams.leave(token)


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(PermissionError, match=r"may be written by others \(mode 777\).*chmod go-w"):
        certificates.ensure(open_to_all, "127.0.0.1")
    with pytest.raises(ConfigurationError, match="may be written by others"):
        tls_context(Serving("127.0.0.1", cert_dir=str(open_to_all)))
    with pytest.raises(PermissionError, match="may be written by others"):
        CertFolder(str(open_to_all)).write(renew(None, "koord.example", seams.utcnow()))
    assert list(open_to_all.iterdir()) == []
