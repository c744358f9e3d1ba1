"""Bearer tokens: the administrator's, and those of service accounts.

A service account's token is a JSON web token that names the account and what it is bound to, by their uids. It ends with them, and at its
time, but not with the process: the key that signs it is kept with the state.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from koord import seams
from koord.api.times import parse_time
from koord.apiserver.store import Entry, Obj, Store
from koord.apiserver.users import ACCOUNT, ADMIN, User, account_groups
from koord.process import certificates

ISSUER = "https://kubernetes.default.svc"
ACCOUNTS = "/serviceaccounts"
# what a token may be bound to: kind -> bucket
BOUND = {"Pod": "/pods", "Secret": "/secrets", "Node": "/nodes"}
INVALID = "invalid bearer token"
_LEEWAY = 60.0  # seconds after its deletion time that something still counts as there
_EXTRA = "authentication.kubernetes.io/"
_KEY_BYTES = 32
_HEADER = {"alg": "HS256", "typ": "JWT"}


class TokenError(Exception):
    """A token that is not good; the text says why."""


class Accepted(NamedTuple):
    """Whose a token is, and for which audiences it counts."""

    user: User
    audiences: list[str]


def kept_key(file: Path) -> bytes:
    """The signing key in a file, made if there is none. Raises OSError, and ValueError for a file that holds no key."""
    if not file.exists():
        certificates.write(file, seams.token_hex(_KEY_BYTES).encode() + b"\n")
    try:
        key = bytes.fromhex(file.read_text())
    except ValueError:
        key = b""
    if len(key) < _KEY_BYTES:
        raise ValueError(f"{file} holds no key of {_KEY_BYTES} bytes in hex; one is made where the file is missing")
    return key


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decode(text: str) -> Any:
    """What a part of a token says; None for none."""
    try:
        return orjson.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        return None


def _claims(token: str) -> Obj | None:
    """What a token says that claims to be ours; None for any other."""
    parts = token.split(".")
    said = _decode(parts[1]) if len(parts) == 3 else None
    return said if isinstance(said, dict) and said.get("iss") == ISSUER else None


class Tokens:
    """Who is behind a bearer token. Without an administrator's token everybody is the administrator who shows no service account's."""

    def __init__(self, store: Store, admin: str = "", key: bytes = b"") -> None:
        self.admin = admin
        self._store = store
        self._key = key

    # -- service accounts --------------------------------------------------------------------------------------------------------

    def issue(self, account: Entry, audiences: list[str], seconds: int, bound: dict[str, Entry | str]) -> str:
        """A token of a service account for `seconds`. `bound`: what it ends with, by kind; the node of a pod may be a mere name."""
        if not self._key:  # of the first token: it ends with the process
            self._key = bytes.fromhex(seams.token_hex(_KEY_BYTES))
        now = int(seams.now())
        said: Obj = {"namespace": account.namespace, "serviceaccount": _reference(account)}
        said |= {kind.lower(): {"name": what} if isinstance(what, str) else _reference(what) for kind, what in bound.items()}
        claims: Obj = {
            "aud": audiences, "exp": now + seconds, "iat": now, "iss": ISSUER, "jti": seams.uid(), "kubernetes.io": said, "nbf": now,
            "sub": f"{ACCOUNT}{account.namespace}:{account.name}",
        }  # fmt: skip
        content = f"{_encode(orjson.dumps(_HEADER))}.{_encode(orjson.dumps(claims))}"
        return f"{content}.{self._signature(content)}"

    def _signature(self, content: str) -> str:
        return _encode(hmac.digest(self._key, content.encode(), hashlib.sha256))

    def _account(self, token: str, claims: Obj, audiences: list[str]) -> Accepted:
        content, _, signature = token.rpartition(".")
        if not self._key or not token.isascii() or not hmac.compare_digest(self._signature(content), signature):
            raise TokenError(INVALID)
        if claims["exp"] <= seams.now():
            raise TokenError(f"[{INVALID}, service account token has expired]")
        meant = [audience for audience in audiences if audience in claims["aud"]]
        if not meant:
            wanted, own = (orjson.dumps(texts).decode() for texts in (audiences, claims["aud"]))
            raise TokenError(f"[{INVALID}, token audiences {own} is invalid for the target audiences {wanted}]")
        said = claims["kubernetes.io"]
        namespace, account = said["namespace"], said["serviceaccount"]
        self._check(ACCOUNTS, namespace, account)
        extra = {"credential-id": f"JTI={claims['jti']}"}
        for kind, bucket in BOUND.items():
            bound = said.get(kind.lower())
            if bound is None:
                continue
            if kind != "Node":
                self._check(bucket, namespace, bound)
            elif "pod" not in said:  # of a pod's node it is only told
                self._check(bucket, "", bound)
            if kind != "Secret":
                extra |= {f"{kind.lower()}-{key}": value for key, value in bound.items()}
        told = tuple((_EXTRA + key, (value,)) for key, value in extra.items())
        return Accepted(User(claims["sub"], account_groups(namespace), account["uid"], told), meant)

    def _check(self, bucket: str, namespace: str, reference: Obj) -> None:
        """Raise TokenError where what a token is bound to is not there any more."""
        entry = self._store.bucket(bucket).get(namespace, reference["name"])
        meta = entry.obj["metadata"] if entry is not None else {}
        gone = meta.get("deletionTimestamp")
        if meta.get("uid") != reference["uid"] or (gone and parse_time(gone) + _LEEWAY < seams.now()):
            raise TokenError(f"[{INVALID}, service account token has been invalidated]")

    # -- questions ---------------------------------------------------------------------------------------------------------------

    def user(self, authorization: str | None) -> User | None:
        """The user behind an Authorization header; None when it is not good enough."""
        token = ""
        if authorization and authorization[:7].lower() == "bearer ":
            token = authorization[7:].strip()
        try:
            return self._find(token, [ISSUER]).user
        except TokenError:
            return None

    def review(self, token: str, audiences: list[str]) -> Accepted:
        """The user that a TokenReview asks for. Raises TokenError."""
        return self._find(token, audiences or [ISSUER])

    def _find(self, token: str, audiences: list[str]) -> Accepted:
        if self.admin and token and hmac.compare_digest(token.encode(errors="surrogateescape"), self.admin.encode()):
            return Accepted(ADMIN, audiences)
        claims = _claims(token) if token else None
        if claims is not None:
            return self._account(token, claims, audiences)
        if self.admin:
            raise TokenError(INVALID)
        return Accepted(ADMIN, audiences)


def _reference(entry: Entry) -> dict[str, str]:
    return {"name": entry.name, "uid": entry.obj["metadata"]["uid"]}
