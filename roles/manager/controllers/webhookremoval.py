"""With gate WebhookFramework off nobody answers reviews: what is registered would stop every write that waits for one (MGR-WH-03)."""

from __future__ import annotations

from collections.abc import Iterable

from roles.manager.controllers.base import Controller
from roles.manager.controllers.writer import Writer
from roles.manager.options import WebhookOptions
from roles.manager.webhooks import registration

AGAIN = 60.0  # s; in a rolling update replicas of before put back what they serve, until they end
_ALL = "webhooks"


class WebhookRemoval(Controller):
    """Takes the webhooks of a manager of before out of their configurations. The templates stay, for the gate may be switched on again."""

    name = "webhookremoval"

    def __init__(self, writer: Writer, options: WebhookOptions) -> None:
        super().__init__()
        self.writer, self.options = writer, options

    def attach(self) -> None:
        """Look at the begin."""
        self.queue.add(_ALL)

    def keys(self) -> Iterable[str]:
        """Both configurations together."""
        return (_ALL,)

    async def reconcile(self, key: str) -> float | None:
        """Register nothing, and make no configuration."""
        await self.writer.attempt(lambda: registration.sync(self.writer.client, (), self.options, 0, b"", create=False))
        return AGAIN
