package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/spf13/cobra"
)

// What a user typed, or a file said, does not steer the terminal from an error.
func TestExecutePrintable(t *testing.T) {
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) error {
		return errors.Join(Exit(ExitUsage, errors.New("a \x1b[31mred\u202e word")), errors.New("a second\r line"))
	}}
	root.SetArgs(nil)
	var said bytes.Buffer
	if code := Execute(root, &said); code != ExitUsage {
		t.Errorf("code %d", code)
	}
	if want := "Error: a ?[31mred? word\na second? line\n"; said.String() != want {
		t.Errorf("said %q, want %q", said.String(), want)
	}
}

func TestWriteJSON(t *testing.T) {
	in := map[string]string{"a": "x\u202ey\u009bz\x7f\U000e0001é<\n"}
	var out bytes.Buffer
	if err := WriteJSON(&out, in); err != nil {
		t.Fatal(err)
	}
	if want := "{\n  \"a\": \"x\\u202ey\\u009bz\\u007f\\udb40\\udc01é\\u003c\\n\"\n}\n"; out.String() != want {
		t.Errorf("got %s want %s", out.String(), want)
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["a"] != in["a"] {
		t.Errorf("read back %q, %v", back["a"], err)
	}
}
