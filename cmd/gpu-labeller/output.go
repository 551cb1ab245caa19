package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

// encode writes a value as JSON or, with the format yaml, as YAML, with escapes for
// what could steer a terminal.
func encode(w io.Writer, format string, value any) error {
	if format == "yaml" {
		return writeYAML(w, value)
	}
	return cli.WriteJSON(w, value)
}

func writeYAML(w io.Writer, value any) error {
	var node yaml.Node
	if err := node.Encode(value); err != nil {
		return err
	}
	quoteUnprintable(&node)
	var plain bytes.Buffer
	e := yaml.NewEncoder(&plain)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(&node), e.Close()); err != nil {
		return err
	}
	var safe strings.Builder
	for _, r := range plain.String() {
		switch {
		case r == '\n' || strconv.IsPrint(r):
			safe.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&safe, "\\u%04x", r)
		default:
			fmt.Fprintf(&safe, "\\U%08x", r)
		}
	}
	_, err := io.WriteString(w, safe.String())
	return err
}

// quoteUnprintable puts what is not printable between double quotes, where YAML has
// escapes. The encoder escapes controls only.
func quoteUnprintable(node *yaml.Node) {
	if strings.ContainsFunc(node.Value, func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }) {
		node.Style = yaml.DoubleQuotedStyle
	}
	for _, child := range node.Content {
		quoteUnprintable(child)
	}
}
