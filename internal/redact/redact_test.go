package redact

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

const id = "5a1b2c3d-0000-1111-2222-333344445555"

func TestForeign(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"", ""},
		{"GPU-" + id, "GPU-(UUID)"},
		{"MIG-" + strings.ToUpper(id) + " and MIG-GPU-" + id + "/1/0", "MIG-(UUID) and MIG-GPU-(UUID)/1/0"},
		{"{" + id + "}", "{(UUID)}"},
		{"serial 1652923033445, S/N:0324518123", "serial (number), S/N:(number)"},
		{"SN1652923033445X", "SN(number)X"},
		{"00000000:1B:00.0 of driver 550.107.02, process 4194304", "00000000:1B:00.0 of driver 550.107.02, process 4194304"},
	} {
		if got := Foreign(test.text); got != test.want {
			t.Errorf("%q became %q, want %q", test.text, got, test.want)
		}
	}
}

func TestError(t *testing.T) {
	if Error(nil) != nil {
		t.Error("nil became an error")
	}
	err := errors.New("GPU-" + id)
	if got := Error(err); got.Error() != "GPU-(UUID)" || !errors.Is(got, err) {
		t.Errorf("%v", got)
	}
}

type valuer struct{}

func (valuer) LogValue() slog.Value { return slog.StringValue("GPU-" + id) }

type device struct{ UUID string }

func TestHandler(t *testing.T) {
	for name, form := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		"JSON": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			list := []string{"a", "MIG-" + id}
			log := slog.New(Handler(form(&out)))
			log.Debug("not at this level")
			log = log.With("of", "GPU-"+id).WithGroup("group").With("in", []string{id})
			log.Warn("about GPU-"+id,
				"text", id, "error", errors.New(id), "list", list, "set", map[string]string{id: id},
				"struct", device{id}, "pointer", &device{id}, "valuer", valuer{}, slog.Group("inner", "text", id, slog.Group("more", "error", errors.New(id))),
				"kept", []int{1, 2}, "number", 7, "after", 3*time.Second, "nothing", nil)
			got := out.String()
			if strings.Contains(got, id) || strings.Count(got, "(UUID)") != 13 {
				t.Errorf("%d UUIDs were found in %s", strings.Count(got, "(UUID)"), got)
			}
			if strings.Contains(got, "not at this level") || !strings.Contains(got, "group") || name == "JSON" && !strings.Contains(got, `["a","MIG-(UUID)"]`) || list[1] != "MIG-"+id {
				t.Error(got)
			}
		})
	}
}

func TestName(t *testing.T) {
	for name, want := range map[string][2]string{
		" AMD Instinct MI300X ":                      {" AMD Instinct MI300X ", " AMD Instinct MI300X "},
		"System Serial Number: 0324518123456":        {"System", "System Serial Number: 0000000000000"},
		"Board S/N: 12-AB rev 2":                     {"Board  rev 2", "Board S/N: 00-00 rev 2"},
		"SN:1650122003415":                           {"", "SN:0000000000000"},
		"X GPU-8f2b0c8e-1234-4321-abcd-0123456789ab": {"X GPU-", "X GPU-00000000-0000-0000-0000-000000000000"},
		"SNAP: 12": {"SNAP: 12", "SNAP: 12"},
		"Standard PC (Q35 + ICH9, 2009), serial no. = 77-serv": {"Standard PC (Q35 + ICH9, 2009),", "Standard PC (Q35 + ICH9, 2009), serial no. = 00-0000"},
	} {
		if got := Name(name); got != want[0] {
			t.Errorf("%q becomes %q, want %q", name, got, want[0])
		}
		if got := string(MaskName([]byte(name))); got != want[1] {
			t.Errorf("%q is masked as %q, want %q", name, got, want[1])
		}
	}
}

func FuzzName(f *testing.F) {
	f.Add("S/N: 0324518 and serial number #77")
	f.Add("SN=8f2b0c8e-1234-4321-abcd-0123456789ab")
	f.Fuzz(func(t *testing.T, name string) {
		masked := MaskName([]byte(name))
		if len(masked) != len(name) {
			t.Fatalf("%q is masked as %q, of another length", name, masked)
		}
		if a, b := Name(name), Name(string(masked)); a != b {
			t.Errorf("%q becomes %q, and %q masked", name, a, b)
		}
	})
}
