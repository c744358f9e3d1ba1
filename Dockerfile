# One image for every role: the one-dir build of PyInstaller on a plain Debian. The manifests choose the role by its subcommand.
FROM debian:bookworm-slim AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3.11 python3.11-venv libpython3.11 python3-pip binutils gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN packaging/venv.sh .venv requirements-dev.lock && packaging/dist.sh

FROM debian:bookworm-slim
LABEL org.opencontainers.image.title="koord" \
      org.opencontainers.image.description="QoS-based co-location scheduling for Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /src/dist/koord /opt/koord
RUN ln -s /opt/koord/koord /usr/local/bin/koord \
 && useradd --system --uid 65532 --no-create-home --shell /usr/sbin/nologin koord
# koordlet and the runtime proxy are given root by their manifests; nothing else needs it.
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/koord"]
CMD ["--help"]
