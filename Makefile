# What a developer needs: make run, make test. The rest is parts of them, and make
# help lists it.

GO ?= go

# The binary is dynamically linked, since it loads NVML. go-nvml's header marks
# old calls as deprecated, and cgo has to name them all the same.
export CGO_ENABLED = 1
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

RELEASE ?=
LDFLAGS = -s -w $(if $(RELEASE),-X main.release=$(RELEASE))
RECORDED = testdata/hosts/h200x1.txtar

.PHONY: help all build plugin run test lint unit e2e faults scale compare image fuzz vuln bench generate clean

all: build plugin ## both binaries

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  \1 \2/p' $(MAKEFILE_LIST) | while read -r name what; do printf '  %-10s %s\n' "$$name" "$$what"; done

build: ## bin/gpu-labeller
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/gpu-labeller ./cmd/gpu-labeller

plugin: ## bin/kubectl-gpu_labeller, the kubectl plugin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/kubectl-gpu_labeller ./cmd/kubectl-gpu_labeller

run: build ## print this host's labels; without a GPU, a recorded host's
	@out=$$(bin/gpu-labeller --print); code=$$?; \
	if [ -n "$$out" ]; then printf '%s\n' "$$out"; fi; \
	case "$$out" in *gpu.feature.node.kubernetes.io/*) exit $$code;; esac; \
	if [ $$code != 0 ]; then exit $$code; fi; \
	echo "$(RECORDED), a recorded host, gets:"; \
	bin/gpu-labeller --print --host $(RECORDED)

test: lint unit e2e faults ## all that CI runs

# The Go vulnerability database is a Go module, too: no more network than for the
# others. Lint has one version of it, so that no run differs from the one before by
# itself: raise it now and then. Govulncheck takes the module's folder as it is.
VULNDB = v0.0.0-20261105234957-e22db6528018
GOVULNCHECK = $(GO) tool -modfile=tools/go.mod govulncheck -db "file://$$($(GO) mod download -json golang.org/x/vulndb@$(VULNDB) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/data/osv"

lint: ## gofmt, go vet, staticcheck, go mod tidy, helm lint, known vulnerabilities
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "gofmt -w these:"; echo "$$unformatted"; exit 1; fi
	$(GO) mod tidy -diff
	$(GO) vet -tags e2e,faults,scale,compare ./...
	$(GO) tool -modfile=tools/go.mod staticcheck -tags e2e,faults,scale,compare ./...
	$(GO) tool -modfile=manifests/tools/go.mod helm lint --quiet manifests/chart/gpu-labeller
	@mkdir -p .cache
	@if $(GO) mod download golang.org/x/vulndb@$(VULNDB); then \
		$(GOVULNCHECK) -format json ./... >.cache/vulns.json && $(GO) run ./internal/vulns <.cache/vulns.json; \
	else echo "known vulnerabilities: not looked for, since their database cannot be had"; fi

unit: ## the tests, with the race detector
	testdata/cluster/build.sh
	$(GO) test -race -timeout 25m ./...

e2e: ## installs on a real kubelet and containerd; skips, and says so, without root
	testdata/cluster/build.sh kubelet
	$(GO) test -tags e2e -timeout 25m ./test/e2e

# Its rows watch real processes at work. One that fails where the machine stood still
# at the wrong moment does not fail twice.
faults: ## the fault matrix of docs/reliability.md, and a short soak
	testdata/cluster/build.sh
	$(GO) test -tags faults -race -timeout 25m ./test/faults || { echo 'once more:'; $(GO) test -tags faults -race -timeout 25m ./test/faults; }

NODES ?= 250,1000
scale: ## so many agents on a real control plane: minutes for each number
	testdata/cluster/build.sh
	$(GO) test -tags scale -run TestScale -v -count=1 -timeout 60m ./test/scale -nodes $(NODES) $(SCALEFLAGS)

GFD ?=
compare: build ## what an agent costs, beside NVIDIA's GPU Feature Discovery (GFD=its binary)
	testdata/cluster/build.sh
	$(GO) test -tags compare -v -count=1 -timeout 30m ./test/compare $(if $(GFD),-gfd '$(abspath $(GFD))') $(COMPAREFLAGS)

IMAGE ?= ghcr.io/gpu-labeller/gpu-labeller
VERSION = $(or $(RELEASE),devel)

image: build ## bin/image.tar, in the OCI layout, without a daemon (RELEASE=v0.1.0 is its tag, else devel)
	$(GO) tool -modfile=manifests/tools/go.mod cyclonedx-gomod bin -json -noserial -notimestamp -version '$(VERSION)' -output bin/sbom.cdx.json bin/gpu-labeller
	$(GO) run ./internal/image/mkimage -o bin/image.tar -name '$(IMAGE):$(VERSION)' -version '$(VERSION)' -revision "$$(git rev-parse HEAD)" -sbom bin/sbom.cdx.json bin/gpu-labeller

FUZZTIME ?= 20s
fuzz: ## every fuzz target for FUZZTIME
	@for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s $$package || exit 1; \
		done; \
	done

vuln: VULNDB = latest
vuln: ## known vulnerabilities in what the code calls, as of today (VULNDB=version)
	$(GOVULNCHECK) ./...

bench: ## benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./...

generate: ## docs/labels.md, the labels of the test hosts, the manifests from the chart
	$(GO) test ./labels ./cmd/gpu-labeller -update
	$(GO) test ./manifests -run TestGenerated -update
	$(GO) test ./cmd/kubectl-gpu_labeller -run 'TestExplainClusters|TestScripts' -update

clean: ## remove bin
	rm -rf bin
