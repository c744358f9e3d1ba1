# One image for every role: the one-dir build on a plain Debian. The manifests choose the role by its subcommand.
#
#   docker build --tag koord .        (buildah bud, podman build and nerdctl build do as well)
#
# A build behind an index or a proxy of your own: --build-arg PIP_INDEX_URL=…, and the HTTP_PROXY family, which every builder knows.
# A one-dir build that is there already takes the place of the first stage: --build-context build=DIR with DIR/dist/koord.
FROM debian:bookworm-slim AS build
ARG PIP_INDEX_URL
ARG PIP_CERT
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# Security updates of the base matter more than the same bytes twice; what goes into koord itself is locked by hash.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends ca-certificates python3.11 python3.11-venv libpython3.11 binutils gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
ARG SOURCE_DATE_EPOCH
RUN packaging/venv.sh .venv requirements-dev.lock && DIST=/dist packaging/dist.sh --one-dir

FROM debian:bookworm-slim
ARG VERSION=dev
ARG REVISION
ARG CREATED
LABEL org.opencontainers.image.title="koord" \
      org.opencontainers.image.description="QoS-based co-location scheduling for Kubernetes: every role in one executable" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.vendor="koord" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="docker.io/library/debian:bookworm-slim"
# With its SBOM: /opt/koord/koord.cdx.json. The base's own packages are in /var/lib/dpkg, where scanners look.
COPY --from=build /dist/koord /opt/koord
# No program of the base may give rights that the container was not started with.
RUN ln -s /opt/koord/koord /usr/local/bin/koord \
 && useradd --key UID_MAX=65532 --key GID_MAX=65532 --uid 65532 --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin koord \
 && find / -xdev -type f -perm /6000 -exec chmod a-s {} +
# Nothing is written below the root: run it read-only. koordlet and the runtime proxy are given root by their manifests; nothing else needs it.
USER 65532:65532
# Engines outside Kubernetes ask this; the manifests have probes of their own.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 CMD ["/usr/local/bin/koord", "probe"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/koord"]
CMD ["--help"]
