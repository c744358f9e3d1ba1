"""Projections: what koord's roles read of Kubernetes objects, decoded straight from watch bytes (API-NM-01 and every role).

Conventions, in all modules behind this one:

* Attributes are the snake_case of the wire names (``pod.spec.node_name``); ``podIP`` is ``pod_ip``, ``containerID`` ``container_id``.
* **Lists are tuples, structs and tuples are immutable, and a default may be one object shared by all.** Never change a projection or a
  dict in it; make another with ``msgspec.structs.replace``. (``koord.api.deprecated`` is the one exception, before anyone else sees it.)
* **A list, map or struct is never None** unless nil means something else than empty (selectors, affinity, pod-level resources, pointers
  to structs in CRDs): those are typed ``X | None``. So are optional scalars where unset differs from zero. ``null`` means absent
  everywhere: decode with ``decode``, ``decoder`` or ``convert`` of this module, not with a bare msgspec decoder, which refuses a null
  list.
* Resource lists are ``dict[str, str | int | float]``, as written; ``koord.accounting.resources.parse`` makes integers of them.
* Timestamps and durations are text; ``koord.api.times`` reads them.
* Unknown fields are skipped, so a projection is **never written back**: writes are patches.
* A wrong JSON type raises ``msgspec.ValidationError`` with the path; text that is no JSON raises its base ``msgspec.DecodeError``.
"""

from __future__ import annotations

from koord.api.objects_cluster import *  # noqa: F403
from koord.api.objects_crd import *  # noqa: F403
from koord.api.objects_meta import *  # noqa: F403
from koord.api.objects_pod import *  # noqa: F403
from koord.api.objects_scheduling import *  # noqa: F403
from koord.api.objects_slo import *  # noqa: F403
from koord.api.objects_storage import *  # noqa: F403
