"""Which CRI calls are hooked, and at which stage (RP-REG-02, RP-CRI-02, RP-CRI-03)."""

from __future__ import annotations

RUNTIME_SERVICE = "/runtime.v1.RuntimeService/"
HOOK_SERVICE = "/runtime.v1alpha1.RuntimeHookService/"


# Hook type (the stage and the CRI method) -> method of the hook service.
HOOK_METHODS: dict[str, str] = {
    name: f"{HOOK_SERVICE}{name}Hook"
    for name in (
        "PreRunPodSandbox", "PostStopPodSandbox", "PreCreateContainer", "PreStartContainer", "PostStartContainer",
        "PreUpdateContainerResources", "PostStopContainer",
    )
}  # fmt: skip

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
