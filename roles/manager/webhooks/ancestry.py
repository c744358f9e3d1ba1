"""A quota that moves in the tree: no order of moves, through whatever replicas, makes a cycle (MGR-EQ-V-01).

Caches lag, and two moves that are sound one by one may make a cycle together. So a move reads its new ancestors from the API server and
touches each of them, on the condition that it has not changed since: a move of an ancestor that is under way then fails with a
conflict, and is reviewed anew with this one in view.
"""

from __future__ import annotations

from typing import Any

from koord import seams
from koord.api import names
from koord.api.kinds import ELASTICQUOTAS
from koord.api.objects import ElasticQuota, convert
from koord.kube.errors import ApiError, Conflict, NotFound
from roles.manager.webhooks.quota_topology import Quota, read_quota
from roles.manager.webhooks.review import Refusal
from roles.manager.webhooks.view import View

ATTEMPTS = 5


async def confirm(quota: Quota, old: Quota, view: View) -> None:
    """Raises Refusal when the quota would become its own ancestor, or when that cannot be made certain now (500)."""
    if quota.parent in (old.parent, names.QUOTA_ROOT):
        return
    for attempt in range(1, ATTEMPTS + 1):
        try:
            await _pin(quota, view)
            return
        except Conflict as error:
            if attempt == ATTEMPTS:
                raise Refusal(f"quota {quota.name}: its new ancestors change meanwhile ({error}); try again", 500) from None
        except ApiError as error:
            raise Refusal(f"quota {quota.name}: its new ancestors cannot be read: {error}", 500) from None


async def _pin(quota: Quota, view: View) -> None:
    """Walk up from the new parent, touching each quota on the way. Raises Refusal, or ApiError."""
    above, seen = quota.parent, [quota.name]
    while above != names.QUOTA_ROOT:
        if above in seen:
            raise Refusal(f"quota {quota.name}: cannot be its own ancestor: {' -> '.join([*seen, above])}")
        seen.append(above)
        known = view.quotas.get(above)
        if known is None:
            raise Refusal(f"quota {quota.name}: its ancestor {above} does not exist")
        try:
            found = convert(await view.quota_client.get(ELASTICQUOTAS, above, known.namespace), ElasticQuota)
        except NotFound:
            raise Refusal(f"quota {quota.name}: its ancestor {above} does not exist any more") from None
        mark: dict[str, Any] = {names.ANNOTATION_QUOTA_MOVE: f"{quota.name}/{seams.uid()}"}
        body = {"metadata": {"annotations": mark, "resourceVersion": found.metadata.resource_version}}
        await view.quota_client.patch(ELASTICQUOTAS, above, body, known.namespace, type="merge")
        above = read_quota(found).parent
