package address

import (
	"cmp"
	"encoding/json"
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	tests := []struct {
		text string
		want Address
		form string // of String
	}{
		{"0000:1b:00.0", Address{0, 0x1b, 0, 0}, "0000:1b:00.0"},
		{"00000000:1B:00.0", Address{0, 0x1b, 0, 0}, "0000:1b:00.0"},
		{"c05b4:00:00.0", Address{0xc05b4, 0, 0, 0}, "c05b4:00:00.0"},
		{"10000:e1:00.0", Address{0x10000, 0xe1, 0, 0}, "10000:e1:00.0"},
		{"000C05B4:00:1f.7", Address{0xc05b4, 0, 0x1f, 7}, "c05b4:00:1f.7"},
		{"ffffffff:ff:1f.7", Address{0xffffffff, 0xff, 0x1f, 7}, "ffffffff:ff:1f.7"},
	}
	for _, tt := range tests {
		got, err := Parse(tt.text)
		if err != nil || got != tt.want || got.String() != tt.form {
			t.Errorf("%q: got %+v, %q, %v", tt.text, got, got, err)
		}
	}
	for _, text := range []string{
		"", "1b:00.0", "0000:1b:00", "0000:1b:00.", "0000:1b:20.0", "0000:1b:00.8", "0000:1b:0.0", "0000:b:00.0",
		"000:1b:00.0", "123456789:1b:00.0", "0000:1b:00.0 ", "0000:1b:00.0\n", "0x00:1b:00.0", "+000:1b:00.0",
		"0_00:1b:00.0", "000g:1b:00.0", "0000:1b:00.0:", "0000:1b:00:0", "0000.1b.00.0",
	} {
		if got, err := Parse(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestAddressOrder(t *testing.T) {
	want := []string{"0000:0a:00.0", "0000:0a:00.1", "0000:0a:01.0", "0000:9f:00.0", "0001:00:00.0", "10000:00:00.0", "ffff0:00:00.0"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, func(a, b string) int {
		first, err1 := Parse(a)
		second, err2 := Parse(b)
		if err := cmp.Or(err1, err2); err != nil {
			t.Error(err)
		}
		return first.Compare(second)
	})
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestAddressJSON(t *testing.T) {
	text, err := json.Marshal(map[Address]Address{{1, 2, 3, 4}: {0x10000, 0xff, 0, 0}})
	if err != nil || string(text) != `{"0001:02:03.4":"10000:ff:00.0"}` {
		t.Fatalf("got %s, %v", text, err)
	}
	var back map[Address]Address
	if err := json.Unmarshal(text, &back); err != nil || back[Address{1, 2, 3, 4}] != (Address{0x10000, 0xff, 0, 0}) {
		t.Errorf("got %v, %v", back, err)
	}
	if err := json.Unmarshal([]byte(`"1b:00.0"`), new(Address)); err == nil {
		t.Error("no error for a short address")
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"0000:1b:00.0", "00000000:1B:00.0", "c05b4:00:00.0", "ffffffff:ff:1f.7", "", ":", "::.", "0000:1b:20.8"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Parse(text)
		if err != nil {
			if a != (Address{}) {
				t.Errorf("%q: %v with error %v", text, a, err)
			}
			return
		}
		if a.Device > 0x1f || a.Function > 7 {
			t.Errorf("%q: got %+v", text, a)
		}
		again, err := Parse(a.String())
		if err != nil || cmp.Or(a.Compare(again), again.Compare(a)) != 0 || again != a {
			t.Errorf("%q: %v, and again %v, %v", text, a, again, err)
		}
	})
}
