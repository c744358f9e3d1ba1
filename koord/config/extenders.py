"""HTTP extenders of KubeSchedulerConfiguration: programs that the scheduler asks over HTTP (SCH-FW-01)."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from koord.accounting.resources import is_extended
from koord.config.errors import ConfigError
from koord.config.model import ConfigModel, Seconds
from koord.config.urls import is_http_url

DEFAULT_TIMEOUT = 5.0  # seconds


def _base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"is not base64: {error}") from None
    return text


Base64 = Annotated[str, AfterValidator(_base64)]


class ExtenderTLSConfig(ConfigModel):
    """TLS towards an extender. Data is PEM in base64 and goes before files; `insecure` skips the check of the server's certificate."""

    insecure: bool = False
    """Do not check the extender's certificate. Not together with a CA."""
    server_name: str = ""
    """Name that the extender's certificate must be for; empty: the host of urlPrefix."""
    cert_file: str = ""
    """File with the client certificate (PEM)."""
    key_file: str = ""
    """File with the client certificate's key (PEM)."""
    ca_file: str = Field(default="", alias="caFile")
    """File with the CAs that may have signed the extender's certificate (PEM)."""
    cert_data: Base64 = ""
    """Client certificate, PEM in base64; goes before certFile."""
    key_data: Base64 = ""
    """Its key, PEM in base64; goes before keyFile."""
    ca_data: Base64 = Field(default="", alias="caData")
    """CAs, PEM in base64; goes before caFile."""

    @model_validator(mode="after")
    def _complete(self) -> ExtenderTLSConfig:
        if self.insecure and (self.ca_file or self.ca_data):
            raise ConfigError("insecure", "does not go together with caFile or caData")
        if bool(self.cert_file or self.cert_data) != bool(self.key_file or self.key_data):
            raise ConfigError("certFile", "a certificate and its key are needed together")
        return self


class ExtenderManagedResource(ConfigModel):
    """An extended resource of the extender's. `ignored_by_scheduler`: NodeResourcesFit does not look at it."""

    name: str = Field(min_length=1)
    """An extended resource, with a domain other than kubernetes.io."""
    ignored_by_scheduler: bool = False
    """Whether NodeResourcesFit leaves this resource to the extender."""


class Extender(ConfigModel):
    """One extender. A verb is the path below `url_prefix`; an empty one means that it is not asked for that.

    `weight` multiplies its scores (0..10 each, times ten); `managed_resources` limits it to pods that ask for one of them;
    `node_cache_capable` sends node names instead of nodes; `ignorable` schedules on when it fails. `http_timeout` in seconds.
    """

    url_prefix: str = Field(min_length=1)
    """Address that the verbs are appended to, http or https."""
    filter_verb: str = ""
    """Path that is asked which nodes fit; empty: it is not asked."""
    preempt_verb: str = ""
    """Path that is asked about victims of a preemption; empty: it is not asked."""
    prioritize_verb: str = ""
    """Path that is asked for scores; empty: it is not asked."""
    bind_verb: str = ""
    """Path that binds pods. One extender at most may have it."""
    weight: int = 0
    """What its scores (0 to 10) are multiplied with. Above 0 where prioritizeVerb is set."""
    enable_https: bool = Field(default=False, alias="enableHTTPS")
    """Speak TLS even if tlsConfig is absent; without a CA the certificate is then not checked."""
    tls_config: ExtenderTLSConfig | None = None
    """TLS towards the extender."""
    http_timeout: Seconds = DEFAULT_TIMEOUT
    """How long an answer may take; 0 means 5s."""
    node_cache_capable: bool = False
    """Whether it knows nodes itself, so that only their names are sent."""
    managed_resources: list[ExtenderManagedResource] = Field(default_factory=list)
    """Extended resources of its own; with any, it is asked only about pods that request one."""
    ignorable: bool = False
    """Whether scheduling goes on without it when it fails."""

    @model_validator(mode="after")
    def _valid(self) -> Extender:
        if not is_http_url(self.url_prefix):
            raise ConfigError("urlPrefix", f'{self.url_prefix!r} is no URL; write it like "http://127.0.0.1:8888/scheduler"')
        if self.prioritize_verb and self.weight <= 0:
            raise ConfigError("weight", "must be above zero for an extender with a prioritizeVerb")
        if self.http_timeout < 0:
            raise ConfigError("httpTimeout", "must not be negative")
        if self.http_timeout == 0:
            self.http_timeout = DEFAULT_TIMEOUT
        seen: set[str] = set()
        for index, resource in enumerate(self.managed_resources):
            where = f"managedResources[{index}].name"
            if not is_extended(resource.name):
                raise ConfigError(where, f"{resource.name!r} is no extended resource; it must have a domain other than kubernetes.io")
            if resource.name in seen:
                raise ConfigError(where, f"{resource.name!r} is already in this list")
            seen.add(resource.name)
        return self


def check(extenders: list[Extender]) -> None:
    """What must hold for all of them together. Raises ConfigError with the path below `extenders`."""
    binders = [index for index, extender in enumerate(extenders) if extender.bind_verb]
    if len(binders) > 1:
        raise ConfigError(f"extenders[{binders[1]}].bindVerb", f"only one extender may bind; extenders[{binders[0]}] does already")


def ignored_resources(extenders: list[Extender]) -> frozenset[str]:
    """Resources that the scheduler's own NodeResourcesFit leaves to extenders."""
    return frozenset(resource.name for extender in extenders for resource in extender.managed_resources if resource.ignored_by_scheduler)
