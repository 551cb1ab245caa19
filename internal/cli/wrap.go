package cli

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Wrap breaks a paragraph into lines of width characters, 0 for any width: the first
// is indented by first and the others by rest spaces. A word is not broken.
func Wrap(text string, width, first, rest int) []string {
	var lines []string
	line := strings.Repeat(" ", first)
	used := false
	for _, word := range strings.Fields(text) {
		if used && width > 0 && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line, used = strings.Repeat(" ", rest), false
		}
		if used {
			line += " "
		}
		line, used = line+word, true
	}
	return append(lines, line)
}

// WideHelp lists, for tests, the lines of the description and the examples of a
// command and of those below it that are wider than a terminal may be. One word that
// is too long, such as a path, has to be.
func WideHelp(cmd *cobra.Command, width int) []string {
	var wide []string
	for line := range strings.Lines(cmd.Long + "\n" + cmd.Example + "\n") {
		line = strings.TrimRight(line, " \n")
		if n := utf8.RuneCountInString(line); n > width && len(strings.Fields(line)) > 1 {
			wide = append(wide, fmt.Sprintf("%s: %d characters: %s", cmd.CommandPath(), n, line))
		}
	}
	for _, below := range cmd.Commands() {
		wide = append(wide, WideHelp(below, width)...)
	}
	return wide
}

// Few names as many things at most, and counts the others.
func Few(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
