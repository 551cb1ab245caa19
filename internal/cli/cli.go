// Package cli is what the commands have in common: exit codes, the version, flags
// that take one of a few words, and text that is safe for a terminal.
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
	"github.com/spf13/pflag"
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

// UsageArgs gives wrong arguments the exit code of wrong usage, and says what may
// have been meant.
func UsageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			return nil
		}
		if len(args) > 0 {
			if flag := valueless(cmd, args[0]); flag != nil {
				form := args[0]
				if flag.Value.Type() != "bool" {
					form, _ = pflag.UnquoteUsage(flag) // the word in backquotes
				}
				err = fmt.Errorf("%q: the value of --%s stands after an equals sign: --%s=%s", args[0], flag.Name, flag.Name, form)
			} else {
				err = fmt.Errorf("%w%s", err, meant(cmd, args[0]))
			}
		}
		return Exit(ExitUsage, fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	}
}

// valueless is a flag that was given without a value, and of which arg may be it.
func valueless(cmd *cobra.Command, arg string) (found *pflag.Flag) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		_, err := strconv.ParseBool(arg)
		if f.NoOptDefVal != "" && f.Value.String() == f.NoOptDefVal && (f.Value.Type() != "bool" || err == nil) {
			found = f
		}
	})
	return found
}

// UsageFlags gives wrong flags the exit code of wrong usage, and says what may have
// been meant.
func UsageFlags(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	hint := ""
	switch {
	case errors.As(err, &unknown):
		hint = meant(cmd, unknown.GetSpecifiedName())
	case errors.As(err, &invalid) && invalid.GetFlag().Value.Type() == "duration":
		err = fmt.Errorf("--%s %q: want a number with its unit, for instance 5s", invalid.GetFlag().Name, invalid.GetValue())
	}
	return Exit(ExitUsage, fmt.Errorf("%w%s; see %s --help", err, hint, cmd.CommandPath()))
}

// meant names the commands and flags that are spelled much like word.
func meant(cmd *cobra.Command, word string) string {
	if len(word) < 3 {
		return ""
	}
	var all []string
	best := 3 // more than two slips are another word
	consider := func(name, text string) {
		d := distance(word, name)
		if d < best && 2*d < len(name) {
			best, all = d, nil
		}
		if d == best {
			all = append(all, text)
		}
	}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			consider(c.Name(), cmd.CommandPath()+" "+c.Name())
		}
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			consider(f.Name, "--"+f.Name)
		}
	})
	if best == 3 {
		return ""
	}
	return "; did you mean " + strings.Join(all, " or ") + "?"
}

// distance is how many letters to change, add, remove or swap with their neighbour
// make one word of the other.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
				continue
			}
			rows[i][j] = 1 + min(rows[i-1][j-1], rows[i-1][j], rows[i][j-1])
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], 1+rows[i-2][j-2])
			}
		}
	}
	return rows[len(a)][len(b)]
}

// WriteJSON writes v indented. What could steer a terminal, C1 controls and marks
// of the writing direction, is escaped, which encoding/json does not do.
func WriteJSON(w io.Writer, v any) error {
	var plain bytes.Buffer
	e := json.NewEncoder(&plain)
	e.SetEscapeHTML(false)
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
