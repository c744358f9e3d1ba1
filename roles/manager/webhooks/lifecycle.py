"""Certificates, serving, registration and readiness, in one loop on every replica (MGR-WH-02 to MGR-WH-04)."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import lru_cache

from koord import seams
from koord.kube.client import Client
from koord.kube.errors import ApiError
from koord.kube.references import ObjectRef
from koord.process.errors import FatalError
from koord.process.health import Health
from roles.manager.options import WebhookOptions
from roles.manager.webhooks import registration
from roles.manager.webhooks.certstore import CertFolder, FileStore, SecretStore
from roles.manager.webhooks.server import WebhookServer

log = logging.getLogger("koord.manager.webhooks")

PERIOD = 60.0
FIRST_SYNC = 20.0
RETRY = (0.5, 30.0)
PROBE_PERIOD = 5.0
PROBE_LIMIT = 3.0
_HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
QUIET = 0.6  # share of the time of the end without a review after which the endpoint counts as gone
READY = "webhook-ready"
SERVING = "webhook-serving"


class WebhookLifecycle:
    """Keeps the webhook server reachable by the API server. `poke` asks for a sync before the minute is over.

    `on_mistake` is told of configurations whose template cannot be used, at each sync.
    """

    def __init__(
        self,
        client: Client,
        server: WebhookServer,
        options: WebhookOptions,
        health: Health,
        on_mistake: Callable[[ObjectRef, str], None] = lambda about, mistake: None,
    ) -> None:
        self.client, self.server, self.options, self.health, self._on_mistake = client, server, options, health, on_mistake
        self.folder = CertFolder(options.cert_dir)
        self.store = FileStore(self.folder) if options.uses_files else SecretStore(client, options.namespace, options.secret)
        self.synced = asyncio.Event()
        self._poked = asyncio.Event()
        self._trouble = ""  # certificates that cannot be used, though the server still answers
        health.register(SERVING, gate=True)
        health.register(READY)

    def poke(self) -> None:
        """Sync soon: a Secret or a configuration has changed."""
        self._poked.set()

    async def run(self) -> None:
        """Sync for ever. Raises FatalError when the first sync does not finish in 20 s."""
        pause, deadline = RETRY[0], asyncio.get_running_loop().time() + FIRST_SYNC
        while True:
            self._poked.clear()
            try:
                await self.sync()
                pause = RETRY[0]
                wait = PERIOD
            except Exception as error:  # whatever cannot be used: the reason is told, and it is looked at again
                log.warning("webhook sync: %s; again in %.1fs", error, pause, exc_info=None if _known(error) else error)
                if not self.synced.is_set() and asyncio.get_running_loop().time() + pause > deadline:
                    raise FatalError(f"the first webhook sync did not finish in {FIRST_SYNC:.0f}s: {error}") from error
                wait, pause = pause, min(pause * 2, RETRY[1])
            await self._wait(wait)

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._poked.wait(), seconds)
        except TimeoutError:
            return
        await seams.sleep(0.2)  # changes come in groups

    async def sync(self) -> None:
        """Certificates into the folder, server up with them, both configurations right. Raises ApiError, OSError or ValueError."""
        try:
            ca = await self._serve()
            self._trouble = ""
        except Exception as error:
            self._trouble = "" if _known(error) else f"webhook certificates: {error}"
            raise
        for about, mistake in await registration.sync(self.client, self.server.active, self.options, self.server.port, ca):
            log.error("%s %s: %s; what is registered stays", about.kind, about.name, mistake)
            self._on_mistake(about, mistake)
        self.synced.set()

    async def _serve(self) -> bytes:
        """Certificates into the folder, server up with them; the CA. Raises as `sync`."""
        certs = await self.store.ensure(self.options.dns_name, seams.utcnow())
        changed = self.folder.write(certs, whole=self.options.uses_files)
        if not self.server.port:
            await self.server.start(self.options.address, self.options.port, self.folder.cert_file, self.folder.key_file)
            self.health.set(SERVING, True)
        elif self._other_callers() or changed:
            self.server.reload(self.folder.cert_file, self.folder.key_file)
            log.info("the webhook server uses a new certificate" if changed else "the webhook server has new authorities of its callers")
        return certs.ca_cert

    def _other_callers(self) -> bool:
        try:
            return self.server.renew_callers()
        except ValueError as error:
            log.error("%s; the authorities of before stay", error)
            return False

    async def probe(self) -> None:
        """Keep the readiness check true to what a GET of our own TLS port says."""
        await self.synced.wait()
        while True:
            try:
                await self._get_health()
                self.health.set(READY, not self._trouble, self._trouble)
            except (OSError, ValueError) as error:
                self.health.set(READY, False, f"{type(error).__name__}: {error}")
            await seams.sleep(PROBE_PERIOD)

    async def _get_health(self) -> None:
        # Read anew each time: the CA file is replaced when certificates are renewed.
        context = _trusting(self.folder.authorities())
        async with asyncio.timeout(PROBE_LIMIT):
            # By address: a bare container has no /etc/hosts that knows "localhost". The certificate is for the name.
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, ssl=context, server_hostname="localhost")
            try:
                writer.write(_HEALTH)
                status = (await reader.readline()).decode("latin-1").strip()
            finally:
                writer.close()
        if status.split(" ")[1:2] != ["200"]:
            raise OSError(f"/healthz answered {status[:80]!r}")

    async def drain(self, seconds: float) -> None:
        """The end: answer until no load balancer names this replica any longer, then close.

        That is so after `seconds`, and earlier when nobody has asked for three fifths of that time.
        """
        self.server.part_with_clients()
        began = seams.monotonic()
        while (now := seams.monotonic()) - began < seconds and now - max(began, self.server.asked) < seconds * QUIET:
            await seams.sleep(min(0.05, seconds))
        await self.server.stop()


def _known(error: Exception) -> bool:
    """What passes by itself, and needs no traceback."""
    return isinstance(error, (ApiError, OSError))


@lru_cache(maxsize=4)
def _trusting(authorities: str) -> ssl.SSLContext:
    """A client's context that trusts these certificates only. Raises ssl.SSLError."""
    return ssl.create_default_context(cadata=authorities)
