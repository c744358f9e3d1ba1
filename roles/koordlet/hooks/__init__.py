"""Runtime hooks: each written once against a pod or container context, delivered by the reconciler, the gRPC server and NRI.

Being built by its own author, side by side with ``qos`` and ``eviction``; see ``registry.py``.
"""
