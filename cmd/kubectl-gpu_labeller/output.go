package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

// write prints a value as JSON or YAML.
func write(w io.Writer, format string, value any) error {
	if format != "yaml" {
		return cli.WriteJSON(w, value)
	}
	text, err := yaml.Marshal(value) // an error for some controls
	if err != nil || bytes.ContainsFunc(text, func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }) {
		// What could steer a terminal has escapes in JSON, which is YAML, too.
		return cli.WriteJSON(w, value)
	}
	_, err = w.Write(text)
	return err
}

// page is what a table is written to: how wide it is, 0 for any width, and
// whether it has colours.
type page struct {
	io.Writer
	width  int
	colour bool
}

// newPage asks the terminal, if it is one. The environment variable COLUMNS has
// the last word on the width, NO_COLOR on colours.
func newPage(w io.Writer) page {
	p := page{Writer: w}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			p.width = width
		}
	}
	if width, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && width > 0 {
		p.width = width
	}
	return p
}

// The colours of what is said.
const (
	good  = "32"
	bad   = "31"
	vague = "33"
	bold  = "1"
)

// paint colours a text that is padded already, since colours have no width.
func (p page) paint(colour, text string) string {
	if !p.colour || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// table writes rows below a heading in columns two spaces apart. colour may be
// nil.
func (p page) table(rows [][]string, colour func(row, column int, text string) string) {
	widths := columnWidths(rows)
	for i, row := range rows {
		var b strings.Builder
		for j, cell := range row {
			text := cell
			if j < len(row)-1 {
				text = fmt.Sprintf("%-*s", widths[j]+2, cell)
			}
			switch {
			case i == 0:
				text = p.paint(bold, text)
			case colour != nil:
				text = p.paint(colour(i, j, cell), text)
			}
			b.WriteString(text)
		}
		fmt.Fprintln(p, strings.TrimRight(b.String(), " "))
	}
}

func columnWidths(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for j, cell := range row {
			widths[j] = max(widths[j], len([]rune(cell)))
		}
	}
	return widths
}

// tableWidth is how wide a table of these rows is.
func tableWidth(rows [][]string) int {
	total := -2
	for _, w := range columnWidths(rows) {
		total += w + 2
	}
	return total
}

// text writes a paragraph, the first line indented by first and the others by
// rest spaces, broken where the page ends.
func (p page) text(first, rest int, text string) {
	for _, line := range cli.Wrap(text, p.width, first, rest) {
		fmt.Fprintln(p, line)
	}
}

// shorten cuts a text in the middle: the ends of names tell them apart.
func shorten(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width || width < 3 {
		return text
	}
	head := (width - 1) / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(width-1-head):])
}
