package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestWrap(t *testing.T) {
	for _, tt := range []struct {
		width int
		want  []string
	}{
		{0, []string{"  one two a-word-that-is-too-long “five”"}},
		{12, []string{"  one two", "    a-word-that-is-too-long", "    “five”"}},
		{1, []string{"  one", "    two", "    a-word-that-is-too-long", "    “five”"}},
	} {
		if got := Wrap(" one  two\na-word-that-is-too-long “five”", tt.width, 2, 4); !slices.Equal(got, tt.want) {
			t.Errorf("width %d: got %q, want %q", tt.width, got, tt.want)
		}
	}
}

func TestWideHelp(t *testing.T) {
	root := &cobra.Command{Use: "a", Long: strings.Repeat("“x” ", 3) + "\nshort\n" + strings.Repeat("y", 20)}
	root.AddCommand(&cobra.Command{Use: "b", Example: "  # long enough"})
	want := []string{"a: 11 characters: “x” “x” “x”", "a b: 15 characters:   # long enough"}
	if got := WideHelp(root, 10); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := WideHelp(root, 15); got != nil {
		t.Errorf("got %q, want nothing", got)
	}
}
