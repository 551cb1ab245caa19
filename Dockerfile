# syntax=docker/dockerfile:1
# Builds on the builder's own architecture, for whichever is asked for:
#
#   docker buildx build --platform linux/amd64,linux/arm64 --build-arg VERSION=v0.1.0 .

FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26-bookworm AS build
# The binary loads NVML, so it is linked against glibc: a cross compiler for the other
# architecture. bookworm's glibc is the base image's.
RUN apt-get update && \
    apt-get install --yes --no-install-recommends \
      gcc libc6-dev gcc-aarch64-linux-gnu libc6-dev-arm64-cross gcc-x86-64-linux-gnu libc6-dev-amd64-cross && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETARCH
ARG VERSION=devel
RUN case "$TARGETARCH" in \
      amd64) CC=x86_64-linux-gnu-gcc ;; \
      arm64) CC=aarch64-linux-gnu-gcc ;; \
      *) echo "no C compiler for $TARGETARCH" >&2; exit 1 ;; \
    esac && \
    CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" CC=$CC GOOS=linux GOARCH=$TARGETARCH \
      go build -trimpath -buildvcs=false -ldflags "-s -w -X main.release=$VERSION" -o /out/usr/bin/gpu-labeller ./cmd/gpu-labeller && \
    ln -s gpu-labeller /out/usr/bin/gpu-feature-discovery

# glibc and its loader, and neither a shell nor a package manager.
FROM gcr.io/distroless/base-debian12
ARG VERSION=devel
ARG REVISION
LABEL org.opencontainers.image.title="gpu-labeller" \
      org.opencontainers.image.description="Labels Kubernetes nodes with the GPUs that they have" \
      org.opencontainers.image.source="https://github.com/gpu-labeller/gpu-labeller" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /out/ /
# What the NVIDIA runtime goes by where a pod says nothing, as under the GPU
# Operator when this image stands in for gpu-feature-discovery.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
# The chart runs it as 65532. As gpu-feature-discovery it takes over a pod that is
# privileged and names no user, and root is what reads PCI configuration space and
# writes NFD's folder there.
USER 0:0
ENTRYPOINT ["/usr/bin/gpu-labeller"]
