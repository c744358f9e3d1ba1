"""Is what the scheduler counts what is there? The cache compared with objects, and the columns with a recount of them (SCH-FW-06)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from roles.scheduler.cluster.cluster import Cluster


def compare(
    cluster: Cluster, nodes: Iterable[str], placed: Mapping[str, tuple[str, str]], assumed: Callable[[str], bool] = lambda uid: False
) -> list[str]:
    """Differences between the cluster and the objects: names of all nodes, and (key, node) of every running pod that has one, by UID.
    Pods that are assumed, and those that stand for reservations, may count without an object."""
    found: list[str] = []
    known, there = {row.name for row in cluster.rows() if row.view is not None}, set(nodes)
    found.extend(f"node {name} exists but is not in the cache" for name in sorted(there - known))
    found.extend(f"node {name} is in the cache but does not exist" for name in sorted(known - there))
    counted: set[str] = set()
    for row in cluster.rows():
        for uid, pod in row.pods.items():
            counted.add(uid)
            key, node = placed.get(uid, ("", ""))
            if node and node != row.name:
                found.append(f"pod {key} is on node {node} and is counted on {row.name}")
            elif not node and not assumed(uid) and not pod.reservation:
                found.append(f"pod {pod.key} is counted on node {row.name} and is not there")
    found.extend(f"pod {key} is on node {node} and is not counted" for uid, (key, node) in sorted(placed.items()) if uid not in counted)
    return found


def recount(cluster: Cluster) -> list[str]:
    """Differences between the columns and the same nodes and pods counted afresh: what was put on was taken off exactly."""
    fresh = Cluster(cluster.vocabulary, cluster.capacity)
    rows = list(cluster.rows())
    for row in rows:
        if row.view is not None:
            fresh.set_node(row.view)
        for pod in row.pods.values():
            fresh.add_pod(pod, row.name)
    slots = [row.slot for row in rows]
    others = [fresh.slot_of(row.name) for row in rows]
    found: list[str] = []
    columns = {"pod_slots": (cluster.pod_slots, fresh.pod_slots), "alive": (cluster.alive, fresh.alive)}
    for index, name in enumerate(("cpu", "memory")):
        columns[f"non_zero_free[{name}]"] = (cluster.non_zero_free[index], fresh.non_zero_free[index])
    for index, resource in enumerate(list(cluster.vocabulary.resources)[: min(len(cluster.free), len(fresh.free))]):
        columns[f"free[{resource}]"] = (cluster.free[index], fresh.free[index])
    for name, (ours, theirs) in columns.items():
        differ = np.flatnonzero(ours[slots] != theirs[others]) if slots else ()
        found.extend(f"{name} of node {rows[i].name} is {ours[slots[i]]:g}, counted afresh {theirs[others[i]]:g}" for i in differ)
    for row in rows:
        fresh.remove_node(row.name)  # numbers of taints are held in the vocabulary that both share
    return found
