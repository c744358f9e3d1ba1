"""The former name of `roles.descheduler.snapshot`, for plugins that were written for koord 0.2."""

from roles.descheduler.snapshot import NodeView, PodView, Snapshots, Vector, node_view

Pictures = Snapshots

__all__ = ["NodeView", "Pictures", "PodView", "Vector", "node_view"]
