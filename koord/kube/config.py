"""Where the API server is and who we are there: kubeconfig files, or the service account of the pod we run in."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from koord.config.redact import redacted_text
from koord.config.urls import is_http_url
from koord.kube.credentials import (
    AuthProvider,
    Credentials,
    ExecPlugin,
    KubeConfigError,
    StaticHeader,
    TokenFile,
)
from koord.kube.proxies import proxy_from_environment

__all__ = ["ClientConfig", "KubeConfigError", "NotConfigured", "Pem", "load"]

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class NotConfigured(KubeConfigError):
    """Nothing says where an API server is."""


@dataclass(frozen=True)
class Pem:
    """A PEM text: given as bytes, or as a file that may be renewed."""

    data: bytes = b""
    path: str = ""

    def read(self) -> bytes:
        """The text. Raises KubeConfigError."""
        if self.data:
            return self.data
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except OSError as error:
            raise KubeConfigError(self.path, error.strerror or str(error)) from error

    def stamp(self) -> tuple[int, int]:
        """Changes when the file does."""
        try:
            status = os.stat(self.path) if self.path else None
        except OSError:
            return (0, 0)
        return (status.st_mtime_ns, status.st_ino) if status else (0, 0)


@dataclass(frozen=True)
class ClientConfig:
    """How one API server is reached. `ca`, `cert` and `key` are PEM texts or files that may be renewed on disk."""

    server: str
    ca: Pem | None = None
    cert: Pem | None = None
    key: Pem | None = field(default=None, repr=False)
    credentials: Credentials = field(default_factory=Credentials)
    insecure: bool = False
    tls_server_name: str | None = None
    proxy: str | None = None
    namespace: str = "default"
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    source: str = ""


def load(
    kubeconfig: str | None = None,
    *,
    context: str | None = None,
    master: str | None = None,
    environ: Mapping[str, str] | None = None,
    service_account: str = SERVICE_ACCOUNT,
) -> ClientConfig:
    """Find the API server.

    In this order: `kubeconfig` (a path; it must exist), the files of KUBECONFIG (colon-separated, merged, the first that
    says something wins), the service account of this pod, `~/.kube/config`. `master` replaces the server's address.
    Raises KubeConfigError; NotConfigured where nothing of this is there.
    """
    environ = os.environ if environ is None else environ
    if master:
        master = _server(master, "--master")
    if kubeconfig:
        return _from_files([kubeconfig], context, master, environ, required=True)
    listed = [path for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    if listed:
        return _from_files(listed, context, master, environ, required=False)
    if environ.get("KUBERNETES_SERVICE_HOST") and os.path.exists(os.path.join(service_account, "token")):
        return _in_cluster(environ, service_account, master)
    home = os.path.join(environ.get("HOME", "/root"), ".kube", "config")
    if os.path.exists(home):
        return _from_files([home], context, master, environ, required=True)
    if master:
        return ClientConfig(server=master, source="--master")
    raise NotConfigured(
        "",
        "no API server is configured: give --kubeconfig, set KUBECONFIG, or run in a pod with a service account token (no ~/.kube/config)",
    )


def _in_cluster(environ: Mapping[str, str], directory: str, master: str | None) -> ClientConfig:
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    namespace = environ.get("POD_NAMESPACE", "")
    try:
        namespace = namespace or Path(directory, "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        namespace = namespace or "default"
    authority = os.path.join(directory, "ca.crt")
    server = _server(master or f"https://{host}:{port}", "KUBERNETES_SERVICE_HOST")
    return ClientConfig(
        server=server,
        ca=Pem(path=authority) if os.path.exists(authority) else None,
        credentials=TokenFile(os.path.join(directory, "token")),
        proxy=_environment_proxy(server, environ),
        namespace=namespace,
        source="in-cluster service account",
    )


def _url(text: Any, source: str, what: str = "") -> str:
    """An address as it stands there; where it is told that it is none, without a password."""
    if not is_http_url(text):
        raise KubeConfigError(source, f"{what}{redacted_text(repr(text))} must be http://host[:port] or https://host[:port]")
    return str(text)


def _server(text: Any, source: str) -> str:
    return _url(text, source, "server ").rstrip("/")


# -- kubeconfig files ----------------------------------------------------------------------------------------------


def _read(path: str) -> dict[str, Any]:
    import yaml

    from koord.config import plainyaml

    try:
        with open(path, "rb") as file:
            document = plainyaml.load(file.read())
    except OSError as error:
        raise KubeConfigError(path, error.strerror or str(error)) from error
    except yaml.YAMLError as error:
        raise KubeConfigError(path, f"is no valid YAML: {' '.join(str(error).split())}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise KubeConfigError(path, "must be a mapping (kind: Config)")
    return document


class _Merged:
    """Several kubeconfig files as one: of entries with the same name the first file's counts."""

    def __init__(self) -> None:
        self.current = ""
        self.entries: dict[str, dict[str, tuple[dict[str, Any], str]]] = {"clusters": {}, "users": {}, "contexts": {}}

    def add(self, path: str, document: dict[str, Any]) -> None:
        self.current = self.current or str(document.get("current-context") or "")
        for section, known in self.entries.items():
            listed = document.get(section) or []
            if not isinstance(listed, list):
                raise KubeConfigError(path, f"{section} must be a list of named entries")
            for index, entry in enumerate(listed):
                if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
                    raise KubeConfigError(path, f"{section}[{index}] must be a mapping with a name")
                body = entry.get(section[:-1]) or {}
                if not isinstance(body, dict):
                    raise KubeConfigError(path, f"{section}[{index}].{section[:-1]} must be a mapping")
                known.setdefault(entry["name"], (body, path))

    def get(self, section: str, name: Any, source: str) -> tuple[dict[str, Any], str]:
        entry = self.entries[section].get(name) if isinstance(name, str) else None
        if entry is None:
            known = ", ".join(sorted(self.entries[section])) or "none"
            raise KubeConfigError(source, f"{section[:-1]} {name!r} is not defined; known: {known}")
        return entry


def _from_files(paths: list[str], context: str | None, master: str | None, environ: Mapping[str, str], *, required: bool) -> ClientConfig:
    merged, source = _Merged(), os.pathsep.join(paths)
    found = False
    for path in paths:
        if not required and not os.path.exists(path):
            continue
        merged.add(path, _read(path))
        found = True
    if not found:
        raise KubeConfigError(source, "no such file")
    name = context or merged.current
    if not name:
        known = ", ".join(sorted(merged.entries["contexts"]))
        raise KubeConfigError(
            source, f"has no current-context; {f'choose one with --context: {known}' if known else 'it lists no contexts'}"
        )
    chosen, _ = merged.get("contexts", name, source)
    cluster, cluster_path = merged.get("clusters", chosen.get("cluster"), source)
    user, user_path = merged.get("users", chosen.get("user"), source) if chosen.get("user") else ({}, source)
    server = _server(master or cluster.get("server"), cluster_path)
    return ClientConfig(
        server=server,
        ca=_pem(cluster, "certificate-authority", cluster_path),
        cert=_pem(user, "client-certificate", user_path),
        key=_pem(user, "client-key", user_path),
        credentials=_credentials(user, user_path, name, lambda: _told(cluster, cluster_path, master or cluster["server"])),
        insecure=_insecure(cluster, cluster_path),
        tls_server_name=_server_name(cluster, cluster_path),
        proxy=_proxy(cluster, cluster_path) or _environment_proxy(server, environ),
        namespace=str(chosen.get("namespace") or "default"),
        headers=_impersonation(user, user_path),
        source=source,
    )


def _beside(path: str, reference: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(path)), os.path.expanduser(reference))


def _pem(entry: Mapping[str, Any], name: str, path: str) -> Pem | None:
    data, reference = entry.get(f"{name}-data"), entry.get(name)
    if data:
        try:
            return Pem(data=base64.b64decode(data, validate=False))
        except (binascii.Error, ValueError, TypeError):
            raise KubeConfigError(path, f"{name}-data is no base64") from None
    if not reference:
        return None
    file = _beside(path, str(reference))
    if not os.path.exists(file):
        raise KubeConfigError(path, f"{name}: no such file: {file}")
    return Pem(path=file)


def _proxy(cluster: Mapping[str, Any], path: str) -> str | None:
    proxy = cluster.get("proxy-url")
    return _url(proxy, path, "proxy-url ") if proxy else None


def _environment_proxy(server: str, environ: Mapping[str, str]) -> str | None:
    proxy = (proxy_from_environment(server, environ) or "").strip()
    return _url(proxy, "HTTPS_PROXY" if server.startswith("https:") else "HTTP_PROXY") if proxy else None


def _insecure(cluster: Mapping[str, Any], path: str) -> bool:
    """The text "false" would count as true."""
    value = cluster.get("insecure-skip-tls-verify")
    if value is not None and not isinstance(value, bool):
        raise KubeConfigError(path, f"insecure-skip-tls-verify {value!r} must be true or false, without quotes")
    return bool(value)


def _server_name(cluster: Mapping[str, Any], path: str) -> str | None:
    name = cluster.get("tls-server-name")
    if name is not None and not isinstance(name, str):
        raise KubeConfigError(path, f"tls-server-name {name!r} must be a text")
    return name or None


def _impersonation(user: Mapping[str, Any], path: str) -> tuple[tuple[str, str], ...]:
    """Headers that ask to act as somebody else (`as`, `as-uid`, `as-groups`, `as-user-extra`)."""
    pairs = [(f"Impersonate-{name}", user[key]) for name, key in (("User", "as"), ("Uid", "as-uid")) if user.get(key)]
    groups, extra = user.get("as-groups") or [], user.get("as-user-extra") or {}
    if not isinstance(groups, list) or not isinstance(extra, dict) or not all(isinstance(values, list) for values in extra.values()):
        raise KubeConfigError(path, "as-groups must be a list of texts, as-user-extra a mapping of lists of texts")
    pairs += [("Impersonate-Group", group) for group in groups]
    for key, values in extra.items():
        pairs += [(f"Impersonate-Extra-{quote(str(key), safe='')}", value) for value in values]
    if pairs and not user.get("as"):
        raise KubeConfigError(path, "as-uid, as-groups and as-user-extra need as")
    if not all(isinstance(value, str) and value.isascii() and value.isprintable() for _, value in pairs):
        raise KubeConfigError(path, "as, as-uid, as-groups and as-user-extra must be printable ASCII texts")
    return tuple(pairs)


def _told(cluster: Mapping[str, Any], path: str, server: str) -> dict[str, Any]:
    """What credential plugins that want to are told of a cluster, as by client-go: the address in use, and authorities themselves."""
    authority = _pem(cluster, "certificate-authority", path)
    configs = (
        extension.get("extension")
        for extension in cluster.get("extensions") or ()
        if isinstance(extension, dict) and extension.get("name") == "client.authentication.k8s.io/exec"
    )
    told = {
        "tls-server-name": _server_name(cluster, path),
        "insecure-skip-tls-verify": _insecure(cluster, path),
        "certificate-authority-data": base64.b64encode(authority.read()).decode() if authority else "",
        "proxy-url": _proxy(cluster, path),
        "disable-compression": cluster.get("disable-compression"),
        "config": next(configs, None),
    }
    return {"server": server, **{key: value for key, value in told.items() if value}}


def _credentials(user: Mapping[str, Any], path: str, context: str, told: Callable[[], dict[str, Any]]) -> Credentials:
    token = str(user.get("token") or "").strip()
    if user.get("tokenFile"):  # as in client-go: the file is renewed, a token beside it serves only while it cannot be read
        return TokenFile(_beside(path, str(user["tokenFile"])), _header=f"Bearer {token}" if token else "")
    if token:
        return StaticHeader.bearer(token)
    if user.get("username"):
        return StaticHeader.basic(str(user["username"]), str(user.get("password") or ""))
    if user.get("exec"):
        return _exec(user["exec"], path, told)
    if user.get("auth-provider"):
        return AuthProvider(path, context)
    return Credentials()


def _exec(spec: Any, path: str, told: Callable[[], dict[str, Any]]) -> ExecPlugin:
    if not isinstance(spec, dict) or not isinstance(spec.get("command"), str) or not isinstance(spec.get("apiVersion"), str):
        raise KubeConfigError(path, "exec needs command and apiVersion")
    if spec.get("interactiveMode") == "Always":
        raise KubeConfigError(path, "exec: interactiveMode Always cannot be served by a role; accepted: Never, IfAvailable")
    arguments, variables = spec.get("args") or [], spec.get("env") or []
    if not isinstance(arguments, list) or not isinstance(variables, list):
        raise KubeConfigError(path, "exec: args and env must be lists")
    if not all(isinstance(item, dict) and "name" in item for item in variables):
        raise KubeConfigError(path, "exec: each entry of env needs name and value")
    return ExecPlugin(
        source=path,
        command=spec["command"],
        api_version=spec["apiVersion"],
        args=tuple(str(item) for item in arguments),
        env={str(item["name"]): str(item.get("value") or "") for item in variables},
        cluster=told() if spec.get("provideClusterInfo") else None,
        directory=os.path.dirname(os.path.abspath(path)),
        install_hint=str(spec.get("installHint") or ""),
    )
