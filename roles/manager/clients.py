"""Clients of the manager, one for each kind of work, so that none waits for another (MGR-PROC-01)."""

from __future__ import annotations

from dataclasses import dataclass

from koord.kube.client import Client
from koord.kube.config import ClientConfig
from koord.kube.ratelimit import Priority
from koord.kube.transport import Observer
from roles.manager.options import Options

ROLE = "koordinator-manager"


@dataclass(frozen=True, slots=True)
class Clients:
    """Each has connections and a pace of its own. What people wait for is not paced: it is bounded where it begins."""

    watches: Client
    """Lists and watches of the informers."""
    reviews: Client
    """The few reads of reviews, certificates and registration; the election makes a connection of its own from it."""
    quotas: Client
    """Writes of quota admission: at most one under way for a quota, sixteen in all."""
    bulk: Client
    """Controllers and events; the flags --rest-config-qps and --rest-config-burst pace it."""

    @classmethod
    def one(cls, client: Client) -> Clients:
        """All work through one client; what a review waits for goes first."""
        first = client.ranked(Priority.ADMISSION) if isinstance(client, Client) else client
        return cls(client, first, first, client)

    @classmethod
    def of(cls, config: ClientConfig, options: Options, observer: Observer | None = None) -> Clients:
        """Clients for a configuration; `close` them."""
        paced = options.qps > 0
        bulk = Client(
            config,
            qps=options.qps if paced else None,
            burst=options.burst if paced and options.burst > 0 else None,
            role=ROLE,
            observer=observer,
        )
        watches, reviews, quotas = (Client(config, role=ROLE, observer=observer) for _ in range(3))
        return cls(watches, reviews, quotas, bulk)

    async def close(self) -> None:
        """Close all connections."""
        for client in {id(one): one for one in (self.bulk, self.quotas, self.reviews, self.watches)}.values():
            await client.close()
