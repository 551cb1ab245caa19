// Package cli is what the commands have in common: exit codes, the version, and
// text that is safe for a terminal.
package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"

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
		lines := strings.Split(err.Error(), "\n") // errors that were joined
		for i, line := range lines {
			lines[i] = Printable(line)
		}
		fmt.Fprintln(stderr, "Error:", strings.Join(lines, "\n"))
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

// UsageFlags gives wrong flags the exit code of wrong usage.
func UsageFlags(_ *cobra.Command, err error) error { return Exit(ExitUsage, err) }

// WriteJSON writes v indented. What could steer a terminal, C1 controls and marks
// of the writing direction, is escaped, which encoding/json does not do.
func WriteJSON(w io.Writer, v any) error {
	var plain bytes.Buffer
	e := json.NewEncoder(&plain)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	var safe strings.Builder
	for _, r := range plain.String() {
		if r == '\n' || strconv.IsPrint(r) {
			safe.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&safe, "\\u%04x", unit)
		}
	}
	_, err := io.WriteString(w, safe.String())
	return err
}

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
