#!/bin/bash
# Builds the programs of a Kubernetes control plane from the module in this folder:
# etcd, kube-apiserver, kube-scheduler, kube-controller-manager, kubectl, and any
# further ones named as arguments (kubelet).
#
# Prints the folder with the programs on standard output, progress on standard error.
# The folder is named after what the programs are built from, so a second call finds
# them and does nothing. The first call downloads about 250 modules and compiles for
# minutes: 6 on 2 cores.
#
# GPU_LABELLER_CLUSTER_CACHE=DIR overrides where the folder lies (.cache/cluster).
set -euo pipefail
cd "$(dirname "$0")"
kubernetes=v1.37.2

cache=${GPU_LABELLER_CLUSTER_CACHE:-../../.cache/cluster}
key=$( (cat go.mod build.sh; go env GOVERSION GOOS GOARCH) | sha256sum | cut -c1-16)
mkdir -p "$cache/$key"
out=$(cd "$cache/$key" && pwd)
[ -e "$cache/.gitignore" ] || echo '*' >"$cache/.gitignore"

# One build at a time: test packages run side by side.
exec 9>"$out/lock"
flock -n 9 || { echo "cluster: another build is under way, waiting for it" >&2; flock 9; }

build() { # program package ldflags
  [ -x "$out/$1" ] && return
  local start=$SECONDS
  echo "cluster: building $1 (go build $2)" >&2
  CGO_ENABLED=0 nice go build -trimpath -ldflags "$3" -o "$out/$1.part" "$2"
  mv "$out/$1.part" "$out/$1"
  echo "cluster: built $1 in $((SECONDS - start)) s" >&2
}

build etcd go.etcd.io/etcd/server/v3 "-s -w"
# Without the version the API server says v0.0.0-master, and clients that compare versions fail.
IFS=. read -r major minor _ <<<"${kubernetes#v}"
version="-s -w"
for v in component-base/version.gitVersion=$kubernetes component-base/version.gitMajor=$major \
  component-base/version.gitMinor=$minor client-go/pkg/version.gitVersion=$kubernetes; do
  version+=" -X k8s.io/$v"
done
for p in kube-apiserver kube-scheduler kube-controller-manager kubectl "$@"; do
  build "$p" "k8s.io/kubernetes/cmd/$p" "$version"
done
echo "$out"
