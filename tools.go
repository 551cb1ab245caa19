//go:build tools

package tools

import (
	_ "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	_ "github.com/NVIDIA/go-nvml/pkg/nvml"
	_ "github.com/cyphar/filepath-securejoin"
	_ "github.com/google/renameio/v2"
	_ "github.com/jaypipes/ghw"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/tools/txtar"
	_ "gopkg.in/yaml.v3"
	_ "k8s.io/apimachinery/pkg/util/validation"
	_ "k8s.io/client-go/dynamic"
	_ "k8s.io/client-go/metadata"
	_ "k8s.io/client-go/rest"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "pgregory.net/rapid"
)
