package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/gpu-labeller/gpu-labeller/labels"
)

func TestParseIntelNames(t *testing.T) {
	tests := []struct {
		text, wrong string
		want        map[uint16]labels.IntelName
	}{
		{text: "", want: map[uint16]labels.IntelName{}},
		{text: "# none yet\n", want: map[uint16]labels.IntelName{}},
		{text: "56c0: {product: Flex_170, family: Flex_Series}\n5690: {product: Arc_A770M}\n56e0: {family: X}\n", want: map[uint16]labels.IntelName{
			0x56c0: {Product: "Flex_170", Family: "Flex_Series"}, 0x5690: {Product: "Arc_A770M"}, 0x56e0: {Family: "X"},
		}},
		{text: "- a\n", wrong: "want device IDs with their names"},
		{text: "0x56c0: {}\n", wrong: `line 1: device ID "0x56c0": want four hexadecimal digits`},
		{text: "a:\n", wrong: `device ID "a"`},
		{text: "56c0: {name: x}\n", wrong: "line 1: device ID 56c0: want product and family"},
		{text: "56c0: [\n", wrong: "yaml"},
	}
	for _, test := range tests {
		got, err := parseIntelNames([]byte(test.text))
		switch {
		case test.wrong != "":
			if err == nil || !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("%q: error %v, want %q", test.text, err, test.wrong)
			}
		case err != nil || !maps.Equal(got, test.want):
			t.Errorf("%q: %v, %v, want %v", test.text, got, err, test.want)
		}
	}
}

func FuzzParseIntelNames(f *testing.F) {
	f.Add([]byte("56c0: {product: Flex_170, family: Flex_Series}\n"))
	f.Add([]byte("5690: &a {product: x}\n56e0: *a\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		names, err := parseIntelNames(text)
		if err != nil {
			if names != nil || err.Error() == "" {
				t.Errorf("%v, and error %q", names, err)
			}
			return
		}
		// The names, written, are read as they are.
		table := map[string]map[string]string{}
		for id, name := range names {
			table[fmt.Sprintf("%04x", id)] = map[string]string{"product": name.Product, "family": name.Family}
		}
		again, err := yaml.Marshal(table)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseIntelNames(again); err != nil || !maps.Equal(got, names) {
			t.Errorf("%v, %v of\n%s, want %v", got, err, again, names)
		}
	})
}

func TestReadIntelNames(t *testing.T) {
	dir := t.TempDir()
	pipe, long, good := filepath.Join(dir, "pipe"), filepath.Join(dir, "long"), filepath.Join(dir, "good")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	row := "56c0: {product: Flex_170, family: Flex_Series}\n"
	for name, text := range map[string]string{good: row, long: row + strings.Repeat("#\n", maxIntelNames/2)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{pipe: "not a regular file", long: "longer than the file can be", dir: "not a regular file"} {
		if names, err := readIntelNames(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, error %v, want %q", name, names, err, want)
		}
	}
	if names, err := readIntelNames(good); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
}
