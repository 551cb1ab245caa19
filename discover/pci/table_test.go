package pci

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestRows(t *testing.T) {
	var got []string
	for device, row := range Rows("# comment\n\n2331 hopper H100 PCIe\n  0bd0 d\nffff\n10000 x\nzz x\n00FF  y ") {
		got = append(got, fmt.Sprintf("%04x: %s", device, row))
	}
	if want := []string{"2331: hopper H100 PCIe", "0bd0: d", "ffff: ", "00ff: y"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestTables: no table of GPUs has a row that is passed over.
func TestTables(t *testing.T) {
	for _, name := range []string{"amd", "intel", "nvidiaids"} {
		table, err := os.ReadFile("../" + name + "/ids.txt")
		if err != nil {
			t.Fatal(err)
		}
		want, got := 0, 0
		for line := range strings.Lines(string(table)) {
			if !strings.HasPrefix(line, "#") {
				want++
			}
		}
		for range Rows(string(table)) {
			got++
		}
		if got != want || got < 100 {
			t.Errorf("%s: %d rows in %d lines", name, got, want)
		}
	}
}
