package main

import (
	"errors"
	"io"

	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

// encode writes a value as JSON or, with the format yaml, as YAML. JSON has escapes
// for what could steer a terminal.
func encode(w io.Writer, format string, value any) error {
	if format == "yaml" {
		e := yaml.NewEncoder(w)
		e.SetIndent(2)
		return errors.Join(e.Encode(value), e.Close())
	}
	return cli.WriteJSON(w, value)
}
