package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/labels"
)

// maxIntelNames bounds the file: every device ID there is fits.
const maxIntelNames = 4 << 20

// readIntelNames reads names for Intel GPUs that the built-in table does not
// have, as a ConfigMap may hold them:
//
//	"e20b": {product: Arc_B580, family: B_Series}
func readIntelNames(file string) (map[uint16]labels.IntelName, error) {
	text, err := hostfs.Root("").ReadFile(file, maxIntelNames)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	names, err := parseIntelNames(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return names, nil
}

func parseIntelNames(text []byte) (map[uint16]labels.IntelName, error) {
	// As nodes: without quotes 5690 is a number, and 56e0 one with an exponent.
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	names := map[uint16]labels.IntelName{}
	if len(document.Content) == 0 {
		return names, nil // nothing, or comments only
	}
	table := document.Content[0]
	if table.Kind != yaml.MappingNode {
		return nil, errors.New("want device IDs with their names: 56c0: {product: Flex_170, family: Flex_Series}")
	}
	for i := 0; i+1 < len(table.Content); i += 2 {
		key, value := table.Content[i], table.Content[i+1]
		id, err := strconv.ParseUint(key.Value, 16, 16)
		if err != nil || len(key.Value) != 4 {
			return nil, fmt.Errorf("line %d: device ID %q: want four hexadecimal digits, such as 56c0", key.Line, key.Value)
		}
		row, err := yaml.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", value.Line, err)
		}
		var name struct {
			Product string `yaml:"product"`
			Family  string `yaml:"family"`
		}
		d := yaml.NewDecoder(bytes.NewReader(row))
		d.KnownFields(true)
		if err := d.Decode(&name); err != nil {
			return nil, fmt.Errorf("line %d: device ID %s: want product and family: %w", value.Line, key.Value, err)
		}
		names[uint16(id)] = labels.IntelName{Product: name.Product, Family: name.Family}
	}
	return names, nil
}
