// Package cli is what the commands have in common: exit codes, the version, flags
// that take one of a few words, and text that is safe for a terminal.
package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes of every command. What else a command tells by its code, from 3
// on, is its own.
const (
	ExitOK      = 0
	ExitFailure = 1 // the command itself went wrong
	ExitUsage   = 2
)

// ExitError carries an exit code.
type ExitError struct {
	Code int
	err  error
}

// Exit is an error that ends the command with the code. err is nil when all has
// been said.
func Exit(code int, err error) error { return &ExitError{code, err} }

// Error is empty when all has been said.
func (e *ExitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap is the error that was given to Exit.
func (e *ExitError) Unwrap() error { return e.err }

// Execute runs a command, says its error on stderr, and gives its exit code.
func Execute(root *cobra.Command, stderr io.Writer) int {
	err := root.Execute()
	if err == nil {
		return ExitOK
	}
	code := ExitFailure
	var exit *ExitError
	if errors.As(err, &exit) {
		code = exit.Code
	}
	if err.Error() != "" {
		fmt.Fprintln(stderr, "Error:", err)
	}
	return code
}

// UsageArgs gives wrong arguments the exit code of wrong usage.
func UsageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return Exit(ExitUsage, err)
		}
		return nil
	}
}

// NoCommand is the check of the arguments of a command that has commands: any
// argument is one that there is not. It names those that are like it.
func NoCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		text += ": is " + strings.Join(like, " or ") + " meant?"
	}
	return Exit(ExitUsage, errors.New(text))
}

// UsageFlags gives wrong flags the exit code of wrong usage.
func UsageFlags(_ *cobra.Command, err error) error { return Exit(ExitUsage, err) }

// Printable keeps what firmware, drivers and objects say from steering a
// terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
