package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Choice is a flag that takes one of a few words.
type Choice struct {
	Value string // before the flag is given, its default
	Of    []string
	Also  string // another one, which not all commands take, and which is not offered
}

// String is the word.
func (c *Choice) String() string { return c.Value }

// Type stands in --help for the flag's value.
func (c *Choice) Type() string { return strings.Join(c.Of, "|") }

// Set takes a word, and no other than those.
func (c *Choice) Set(s string) error {
	if !slices.Contains(c.Of, s) && (s == "" || s != c.Also) {
		return fmt.Errorf("want one of %s", strings.Join(c.Of, ", "))
	}
	c.Value = s
	return nil
}

// Complete offers a shell the words.
func (c *Choice) Complete(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return c.Of, cobra.ShellCompDirectiveNoFileComp
}
