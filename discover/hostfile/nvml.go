package hostfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
	"github.com/gpu-labeller/gpu-labeller/discover/nvml"
)

// ReadNVML reads what NVML answered from nvml.yaml in a folder that holds a
// recorded host. It is nil when there is no such file.
func ReadNVML(dir string) (*nvml.Answer, error) {
	text, err := hostfs.Root(dir).ReadFile(nvmlFile, maxSize)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, nvmlFile), err)
	}
	return parseNVML(text)
}

// parseNVML reads nvml.yaml: nvml.Answer in YAML, under the names of its JSON
// form. A field that nobody knows is an error, as it is a typing error.
func parseNVML(text []byte) (*nvml.Answer, error) {
	var tree any
	if err := yaml.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("%s: %w", nvmlFile, err)
	}
	asJSON, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", nvmlFile, err)
	}
	d := json.NewDecoder(bytes.NewReader(asJSON))
	d.DisallowUnknownFields()
	var a nvml.Answer
	if err := d.Decode(&a); err != nil {
		return nil, fmt.Errorf("%s: %s", nvmlFile, strings.TrimPrefix(err.Error(), "json: "))
	}
	if len(a.GPUs) > nvml.MaxGPUs {
		return nil, fmt.Errorf("%s: %d GPUs: a host has at most %d", nvmlFile, len(a.GPUs), nvml.MaxGPUs)
	}
	if a.Failure == nil && !a.Init.Known() {
		return nil, fmt.Errorf("%s: init: %q: want SUCCESS or another code of nvml.h without NVML_ERROR_", nvmlFile, a.Init)
	}
	return &a, nil
}

// formatNVML writes nvml.yaml with the fields in nvml.Answer's order. JSON is
// YAML, so the tree is the JSON form in another style.
func formatNVML(a *nvml.Answer) ([]byte, error) {
	asJSON, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	var tree yaml.Node
	if err := yaml.Unmarshal(asJSON, &tree); err != nil {
		return nil, err
	}
	restyle(&tree)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&tree); err != nil {
		return nil, err
	}
	return out.Bytes(), e.Close()
}

func restyle(n *yaml.Node) {
	n.Style = 0
	for _, child := range n.Content {
		restyle(child)
	}
}
