"""ClusterColocationProfile controller: profiles on pods that already wait (MGR-CP-01)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from typing import Any

from cachetools import TTLCache

from koord import seams
from koord.api.kinds import CLUSTERCOLOCATIONPROFILES, NAMESPACES, PODS
from koord.api.objects import ClusterColocationProfile, Namespace, Pod, convert
from koord.kube.errors import ApiError, NotFound
from koord.kube.informers import Informer, InformerFactory
from koord.kube.patch import copy_json, diff_merge_patch
from koord.kube.ratelimit import TokenBucket
from roles.manager.controllers.base import Controller, log
from roles.manager.controllers.state import ClusterState, node_of
from roles.manager.controllers.writer import NotLeading, Writer
from roles.manager.options import Options
from roles.manager.webhooks import profiles
from roles.manager.webhooks.profiles import Profile, compile_profile
from roles.manager.webhooks.review import Refusal

_REMEMBERED = 100_000
WAITING = "waiting"
"""Index of the pods that have no node yet."""


def change(pod: dict[str, Any], profile: Profile) -> dict[str, Any]:
    """What the profile does to a pod that already exists: no scheduler name, no priority class, no translation; pure. Raises Refusal."""
    changed: dict[str, Any] = copy_json(pod)
    spec, metadata = profile.spec, changed.setdefault("metadata", {})
    profiles.apply_metadata(spec, metadata, again=True)
    profiles.set_classes(spec, metadata)
    return profiles.apply_patch(profile, changed, "Pod")


class ColocationProfileController(Controller):
    """Keys are profile names; each comes again every interval."""

    name = "colocationprofile"

    def __init__(self, state: ClusterState, informers: InformerFactory, writer: Writer, options: Options) -> None:
        super().__init__()
        self.state, self.writer, self.options = state, writer, options
        self.profiles: Informer[ClusterColocationProfile] = informers.informer(
            CLUSTERCOLOCATIONPROFILES, ClusterColocationProfile, optional=True
        )
        self.namespaces: Informer[Namespace] = informers.informer(NAMESPACES, Namespace)
        self._handled: TTLCache[tuple[str, str, str], bool] = TTLCache(_REMEMBERED, max(options.profile_force_update_duration, 0.001))
        self._swept = seams.monotonic()
        self._last: dict[str, str] = {}  # by profile, the pod that had the last turn
        self._bucket = TokenBucket(options.profile_update_qps, options.profile_update_burst)

    def attach(self) -> None:
        """Listen."""
        self.state.pods.index(WAITING, lambda pod: WAITING if _waits(pod) else None)
        self.profiles.add_handler(
            on_add=lambda profile: self.queue.add(profile.metadata.name),
            on_update=lambda old, new: self.queue.add(new.metadata.name),
        )

    def keys(self) -> Iterable[str]:
        """All profiles."""
        return (name for name, _ in self.profiles.items())

    async def reconcile(self, key: str) -> float | None:
        """Apply one profile to the pods that wait for a node."""
        obj = self.profiles.get(key)
        if obj is None:
            self._last.pop(key, None)
            return None
        if seams.monotonic() - self._swept >= self.options.profile_expire_cache_duration:
            self._handled.expire()
            self._swept = seams.monotonic()
        profile = compile_profile(obj)
        if profile.managed or self.options.profile_reconcile_by_default:
            for pod in self._in_turn(profile):
                # A pod beyond the rate waits for the next round.
                if not await self._update(profile, pod):
                    break
                self._last[key] = pod.metadata.uid
                await self.turns.pause()
        return self.options.profile_reconcile_interval

    def _in_turn(self, profile: Profile) -> list[Pod]:
        """The candidates, those first whose turn the last round did not reach: by the time it comes, the first ones are due again."""
        uid = attrgetter("metadata.uid")
        pods = sorted(self._candidates(profile), key=uid)
        begin = bisect_right(pods, self._last.get(profile.name, ""), key=uid)
        return pods[begin:] + pods[:begin]

    def _candidates(self, profile: Profile) -> list[Pod]:
        # A nil or unreadable selector matches no pod here: nobody means to rewrite every pending pod of the cluster by a mistake.
        if not profile.selects:
            return []
        return [pod for pod in self.state.pods.by_index(WAITING, WAITING) if self._matches(profile, pod)]

    def _matches(self, profile: Profile, pod: Pod) -> bool:
        if profile.selector is not None and not profile.selector.matches(pod.metadata.labels):
            return False
        if profile.namespace_selector is None:
            return True
        namespace = self.namespaces.get(pod.metadata.namespace)
        return namespace is not None and profile.namespace_selector.matches(namespace.metadata.labels)

    async def _update(self, profile: Profile, pod: Pod) -> bool:
        """Change one pod; False when the rate is used up."""
        done = (profile.name, profile.resource_version, pod.metadata.uid)
        draw = partial(profiles.drawn, profile, pod.metadata.namespace, pod.metadata.name)
        try:
            if done in self._handled or not profiles.chosen(profile, draw):
                return True
            if not self._bucket.take(seams.monotonic()):
                return False
            if await self.writer.attempt(lambda: self._write(profile, pod)):
                self._handled[done] = True
        except NotLeading:
            raise
        except NotFound:
            return True
        except (ApiError, Refusal) as error:
            log.warning("profile %s on pod %s: %s; it is tried again next time", profile.name, pod.key, error)
        return True

    async def _write(self, profile: Profile, pod: Pod) -> bool:
        """Change the pod as it is now, and only that version of it: the cache may lag behind its binding, or behind a namesake of it.

        False when it does not wait any more. Raises Conflict when somebody else writes meanwhile.
        """
        name, namespace = pod.metadata.name, pod.metadata.namespace
        current = await self.writer.client.get(PODS, name, namespace)
        now = convert(current, Pod)
        if now.metadata.uid != pod.metadata.uid or not _waits(now) or not self._matches(profile, now):
            return False
        patch = diff_merge_patch(current, change(current, profile))
        if patch:
            version = {"resourceVersion": now.metadata.resource_version}
            body = {**patch, "metadata": {**(patch.get("metadata") or {}), **version}}
            await self.writer.client.patch(PODS, name, body, namespace, type="merge")
        return True


def _waits(pod: Pod) -> bool:
    return node_of(pod) is None and pod.status.phase == "Pending" and not pod.is_deleting
