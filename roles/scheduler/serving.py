"""Where plugins of users look for what is in `koord.process.serving`."""

from koord.process.serving import Gate, Kept, Serving, certificate_user, client_authority

__all__ = ["Gate", "Kept", "Serving", "certificate_user", "client_authority"]
