"""Arguments of Coscheduling (SCH-CFG-01)."""

from __future__ import annotations

from pydantic import Field, model_validator

from koord.api import names
from koord.config.errors import ConfigError
from koord.config.model import Seconds
from roles.scheduler.config.args import PluginArgs


class CoschedulingArgs(PluginArgs):
    """Coscheduling. `defaultTimeout` in seconds; `skipCheckScheduleCycle` is accepted for old files: there is nothing to check."""

    default_timeout: Seconds = 600.0
    """How long members of a gang wait for one another where the gang names no time. At least 0."""
    controller_workers: int = Field(default=1, ge=1)
    """Workers of the PodGroup controller."""
    enable_preemption: bool = False
    """Whether a gang may displace pods of lower priority, all-or-nothing."""
    aware_network_topology: bool = False
    """Place gangs along the ClusterNetworkTopology."""
    default_match_policy: str = names.GANG_MATCH_ONCE_SATISFIED
    """Which members count to minMember where the gang does not say: `once-satisfied`, `waiting-and-running` or `only-waiting`."""
    skip_check_schedule_cycle: bool = False
    """Accepted and left alone: there is no such check."""

    @model_validator(mode="after")
    def _timeout(self) -> CoschedulingArgs:
        if self.default_timeout < 0:
            raise ConfigError("defaultTimeout", "must not be negative")
        return self
