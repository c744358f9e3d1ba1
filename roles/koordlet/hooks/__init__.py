"""Runtime hooks (KA-RH, KA-HK): each written once against a pod or container context, and delivered three ways.

A hook is pure: rule and context in, :class:`~roles.koordlet.hooks.context.Answer` out. The reconciler, the gRPC server (for the
runtime proxy) and NRI build the contexts and carry the answers to files or into responses. Hooks are listed in ``registry.py``.
"""
