# What a developer needs: make run, make test. The rest is parts of them.

GO ?= go

# The binary is dynamically linked, since it loads NVML. go-nvml's header marks
# old calls as deprecated, and cgo has to name them all the same.
export CGO_ENABLED = 1
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

RELEASE ?=
LDFLAGS = -s -w $(if $(RELEASE),-X main.release=$(RELEASE))
RECORDED = testdata/hosts/h200x1.txtar

.PHONY: all build run test lint unit fuzz bench generate clean

all: build

build: ## bin/gpu-labeller
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/gpu-labeller ./cmd/gpu-labeller

run: build ## print this host's labels; without a GPU, a recorded host's
	@out=$$(bin/gpu-labeller --print); code=$$?; \
	if [ -n "$$out" ]; then printf '%s\n' "$$out"; fi; \
	case "$$out" in *gpu.feature.node.kubernetes.io/*) exit $$code;; esac; \
	if [ $$code != 0 ]; then exit $$code; fi; \
	echo "$(RECORDED), a recorded host, gets:"; \
	bin/gpu-labeller --print --host $(RECORDED)

test: lint unit ## all that CI runs

lint: ## gofmt, go vet, staticcheck, go mod tidy
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "gofmt -w these:"; echo "$$unformatted"; exit 1; fi
	$(GO) mod tidy -diff
	$(GO) vet ./...
	$(GO) tool -modfile=tools/go.mod staticcheck ./...

unit: ## the tests, with the race detector
	testdata/cluster/build.sh
	$(GO) test -race -timeout 25m ./...

FUZZTIME ?= 20s
fuzz: ## every fuzz target for FUZZTIME
	@for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "$$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package || exit 1; \
		done; \
	done

bench: ## benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./...

generate: ## docs/labels.md and the labels of the test hosts
	$(GO) test ./labels ./cmd/gpu-labeller -update

clean:
	rm -rf bin
