package cli

import (
	"slices"
	"testing"
)

func TestChoice(t *testing.T) {
	c := Choice{Value: "table", Of: []string{"table", "json"}}
	if err := c.Set("xml"); err == nil || err.Error() != "want one of table, json" || c.String() != "table" {
		t.Errorf("xml: %v, then %v", err, &c)
	}
	if err := c.Set("json"); err != nil || c.Value != "json" {
		t.Errorf("json: %v, then %v", err, &c)
	}
	if err := c.Set(""); err == nil {
		t.Error("no word is taken")
	}
	c.Also = "wide"
	if err := c.Set("wide"); err != nil || c.Value != "wide" {
		t.Errorf("wide: %v, then %v", err, &c)
	}
	if c.Type() != "table|json" {
		t.Errorf("type %s", c.Type())
	}
	if words, _ := c.Complete(nil, nil, ""); !slices.Equal(words, c.Of) {
		t.Errorf("completes %q", words)
	}
}
