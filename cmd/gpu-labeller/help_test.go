package main

import (
	"bytes"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

func TestHelpIsNarrow(t *testing.T) {
	var gfd bytes.Buffer
	writeGFDUsage(&gfd)
	wide := cli.WideHelp(newRootCommand(), 90)
	wide = append(wide, cli.WideHelp(&cobra.Command{Use: gfdName, Long: gfd.String()}, 90)...)
	for _, line := range wide {
		t.Error(line)
	}
}
