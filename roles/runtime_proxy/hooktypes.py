"""Which CRI calls are hooked, at which stage, and under which names (RP-REG-02, RP-CRI-02, RP-CRI-03)."""

from __future__ import annotations

from dataclasses import dataclass

RUNTIME_SERVICE = "/runtime.v1.RuntimeService/"
HOOK_SERVICE = "/runtime.v1alpha1.RuntimeHookService/"


@dataclass(frozen=True, slots=True)
class HookedCall:
    """One CRI method and its hook types; an empty type means that the stage has no hook."""

    method: str
    pre: str = ""
    post: str = ""


CALLS: tuple[HookedCall, ...] = (
    HookedCall("RunPodSandbox", pre="PreRunPodSandbox"),
    HookedCall("StopPodSandbox", post="PostStopPodSandbox"),
    HookedCall("CreateContainer", pre="PreCreateContainer"),
    HookedCall("StartContainer", pre="PreStartContainer", post="PostStartContainer"),
    HookedCall("UpdateContainerResources", pre="PreUpdateContainerResources"),
    HookedCall("StopContainer", post="PostStopContainer"),
)

# Hook type -> method of the hook service.
HOOK_METHODS: dict[str, str] = {name: f"{HOOK_SERVICE}{name}Hook" for call in CALLS for name in (call.pre, call.post) if name}

# Accepted in registration files because upstream's documents list it; no call fires it.
NEVER_FIRES = frozenset({"PreRemoveRunPodSandbox"})

POD_HOOKS = frozenset({"PreRunPodSandbox", "PostStopPodSandbox"})

# Streaming methods of CRI v1 by name, for metrics only: labels must not come from the caller.
STREAM_METHODS: frozenset[str] = frozenset(
    f"/runtime.v1.{method}"
    for method in (
        "RuntimeService/GetContainerEvents",
        "RuntimeService/StreamPodSandboxes",
        "RuntimeService/StreamContainers",
        "RuntimeService/StreamContainerStats",
        "RuntimeService/StreamPodSandboxStats",
        "RuntimeService/StreamPodSandboxMetrics",
        "ImageService/StreamImages",
    )
)

# Methods with one answer: for metrics, and because a proxy that ends waits for them and not for streams.
UNARY_METHODS: frozenset[str] = frozenset(
    f"/runtime.v1.{service}/{method}"
    for service, methods in (
        (
            "RuntimeService",
            "Version RunPodSandbox StopPodSandbox RemovePodSandbox PodSandboxStatus ListPodSandbox CreateContainer StartContainer "
            "StopContainer RemoveContainer ListContainers ContainerStatus UpdateContainerResources ReopenContainerLog ExecSync Exec "
            "Attach PortForward ContainerStats ListContainerStats PodSandboxStats ListPodSandboxStats UpdateRuntimeConfig Status "
            "CheckpointContainer ListMetricDescriptors ListPodSandboxMetrics RuntimeConfig UpdatePodSandboxResources",
        ),
        ("ImageService", "ListImages ImageStatus PullImage RemoveImage ImageFsInfo"),
    )
    for method in methods.split()
)
