package main

import (
	"encoding/json"
	"errors"
	"io"

	"gopkg.in/yaml.v3"
)

// encode writes a value as JSON or, with the format yaml, as YAML.
func encode(w io.Writer, format string, value any) error {
	if format == "yaml" {
		e := yaml.NewEncoder(w)
		e.SetIndent(2)
		return errors.Join(e.Encode(value), e.Close())
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(value)
}
