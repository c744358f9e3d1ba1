"""The former name of `roles.descheduler.cluster`, for plugins that were written for koord 0.2."""

from roles.descheduler.cluster import ClusterState as World

__all__ = ["World"]
