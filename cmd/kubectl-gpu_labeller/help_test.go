package main

import (
	"testing"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

func TestHelpIsNarrow(t *testing.T) {
	for _, line := range cli.WideHelp(newRootCommand(), 90) {
		t.Error(line)
	}
}
