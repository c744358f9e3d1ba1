"""MigrationController as far as it can be told which pods may leave: it refuses to evict."""

from __future__ import annotations

from koord.api.objects import Pod
from roles.descheduler.evictability import evictability
from roles.descheduler.framework.evicting import EvictOptions, EvictResult, NoController, Setup
from roles.descheduler.migration.args import MigrationControllerArgs


class FilterOnly(NoController):
    """The filter of MigrationController."""

    name = "MigrationController"

    def __init__(self, args: MigrationControllerArgs, setup: Setup) -> None:
        self._refuse = evictability(args, setup.world.priority_of)

    def filter(self, pod: Pod) -> str:
        return self._refuse(pod)

    async def evict(self, pod: Pod, options: EvictOptions) -> EvictResult:
        return EvictResult(False, "migrations are not part of this build")
