"""Where webhook certificates live: a Secret that all replicas share, or files; and the folder that the server reads (MGR-WH-02)."""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from koord import seams
from koord.api.kinds import SECRETS
from koord.kube.client import Client
from koord.kube.errors import AlreadyExists, Conflict, NotFound
from koord.process.certificates import check_private
from roles.manager.webhooks.certs import FILES, Certs, problem, renew

log = logging.getLogger("koord.manager.webhooks")


class SecretStore:
    """A Secret: the first replica that creates it wins, the others read it; renewal carries the resourceVersion."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self.client, self.namespace, self.name = client, namespace, name

    async def ensure(self, dns_name: str, now: datetime) -> Certs:
        """Certificates that may serve, made or renewed if need be. Raises ApiError; Conflict means that another replica was quicker.

        Making RSA keys takes up to a second, so that it is done off the event loop.
        """
        try:
            secret = await self.client.get(SECRETS, self.name, self.namespace)
        except NotFound:
            made = await seams.to_thread(renew, None, dns_name, now)
            try:
                await self.client.create(SECRETS, self._object(made, {}), self.namespace)
            except AlreadyExists:
                return await self._read(dns_name, now)
            log.info("made webhook certificates for %s in Secret %s/%s", dns_name, self.namespace, self.name)
            return made
        files = _decode(secret.get("data") or {})
        present = Certs.from_files(files)
        why = problem(present, dns_name, now) if present else "a part is missing"
        if present is not None and not why:
            return present
        made = await seams.to_thread(renew, Certs.remains(files), dns_name, now)
        try:
            await self.client.replace(SECRETS, self._object(made, secret), self.namespace)
        except Conflict:
            return await self._read(dns_name, now)
        log.info("renewed webhook certificates for %s in Secret %s/%s: %s", dns_name, self.namespace, self.name, why)
        return made

    async def _read(self, dns_name: str, now: datetime) -> Certs:
        secret = await self.client.get(SECRETS, self.name, self.namespace)
        present = Certs.from_files(_decode(secret.get("data") or {}))
        why = problem(present, dns_name, now) if present else "a part is missing"
        if present is None or why:
            raise Conflict(409, "Conflict", f"Secret {self.namespace}/{self.name} was written by another replica, but {why}")
        return present

    def _object(self, certs: Certs, base: dict[str, Any]) -> dict[str, Any]:
        data = {name: base64.b64encode(content).decode() for name, content in certs.files().items()}
        metadata = {**(base.get("metadata") or {}), "name": self.name, "namespace": self.namespace}
        return {**base, "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {**(base.get("data") or {}), **data}}


def _decode(data: Mapping[str, str]) -> dict[str, bytes]:
    found = {}
    for name in FILES:
        with contextlib.suppress(ValueError, TypeError):
            found[name] = base64.b64decode(data.get(name, ""), validate=True)
    return found


class FileStore:
    """Files alone, for a manager outside the cluster (`WEBHOOK_HOST`)."""

    def __init__(self, folder: CertFolder) -> None:
        self.folder = folder

    async def ensure(self, dns_name: str, now: datetime) -> Certs:
        """As SecretStore.ensure. Raises OSError."""
        present = self.folder.read()
        if present is not None and not problem(present, dns_name, now):
            return present
        made = await seams.to_thread(renew, present, dns_name, now)
        self.folder.write(made, whole=True)
        return made


class CertFolder:
    """The folder that the server reads; replaced as a whole through a symlink, so that key and certificate always fit."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    @property
    def cert_file(self) -> str:
        return str(self.path / "tls.crt")

    @property
    def key_file(self) -> str:
        return str(self.path / "tls.key")

    @property
    def ca_file(self) -> str:
        return str(self.path / "ca-cert.pem")

    def authorities(self) -> str:
        """The certificates of the CAs, in PEM. Raises OSError."""
        return (self.path / "ca-cert.pem").read_text(encoding="ascii")

    def read(self) -> Certs | None:
        """The certificates on disk with the key of their CA, None unless all six files are there."""
        files = {}
        for name in FILES:
            try:
                files[name] = (self.path / name).read_bytes()
            except OSError:
                return None
        return Certs.from_files(files)

    def write(self, certs: Certs, *, whole: bool = False) -> bool:
        """Put there what the server needs, with the key of the CA if `whole`; False when it is already. Raises OSError."""
        files = certs.files() if whole else certs.served()
        if self._holds(files):
            return False
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_private(self.path)
        version = self.path / f"..{seams.utcnow():%Y_%m_%d_%H_%M_%S}.{seams.token_hex(4)}"
        version.mkdir(mode=0o700)
        for name, content in files.items():
            with open(os.open(version / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
        link = self.path / "..data"
        former = os.readlink(link) if link.is_symlink() else ""
        _relink(link, version.name)
        for name in set(FILES) - files.keys():
            (self.path / name).unlink(missing_ok=True)
        for name in files:
            entry = self.path / name
            if not (entry.is_symlink() and os.readlink(entry) == f"..data/{name}"):
                _relink(entry, f"..data/{name}")
        if former and former != version.name:
            shutil.rmtree(self.path / former, ignore_errors=True)
        return True

    def _holds(self, files: Mapping[str, bytes]) -> bool:
        """Whether these files are there, and no other of ours."""
        try:
            present = {name: (self.path / name).read_bytes() for name in FILES if (self.path / name).exists()}
        except OSError:
            return False
        return present == files


def _relink(link: Path, target: str) -> None:
    temporary = link.with_name(f"{link.name}.{seams.token_hex(4)}")
    temporary.symlink_to(target)
    os.replace(temporary, link)
