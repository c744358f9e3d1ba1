"""Who may talk to the server: one administrator's token, and the tokens that it issued to service accounts."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from koord import seams
from koord.apiserver.rest.context import ADMIN, User


class Tokens:
    """Bearer tokens. Without an administrator's token everybody is the administrator."""

    def __init__(self, admin: str = "") -> None:
        self.admin = admin
        self._issued: dict[str, tuple[User, float]] = {}

    def issue(self, token: str, name: str, namespace: str, expires: float, extra: Mapping[str, str]) -> None:
        """Remember a service account's token until `expires` (Unix seconds); `extra` says more of who uses it."""
        now = seams.now()
        for old in [t for t, (_, until) in self._issued.items() if until < now]:
            del self._issued[old]
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        known = tuple((key, (value,)) for key, value in extra.items())
        self._issued[token] = (User(name, groups, extra=known), expires)

    def user(self, authorization: str | None) -> User | None:
        """The user behind an Authorization header; None when it is not good enough."""
        token = ""
        if authorization and authorization[:7].lower() == "bearer ":
            token = authorization[7:].strip()
        if token and self._issued:
            found = self._issued.get(token)
            if found is not None and found[1] > seams.now():
                return found[0]
        if not self.admin:
            return ADMIN
        return ADMIN if token and hmac.compare_digest(token.encode(), self.admin.encode()) else None

    def review(self, token: str) -> User | None:
        """The user that a TokenReview asks for."""
        return self.user(f"Bearer {token}") if token else None
