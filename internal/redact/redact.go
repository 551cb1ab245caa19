// Package redact keeps what names a piece of hardware for ever out of logs: UUIDs,
// of GPUs and MIG devices, and serial numbers.
package redact

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
)

var (
	// A UUID stands alone, or behind GPU- or MIG-, which stays.
	uuid = regexp.MustCompile(`(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}`)
	// Serial numbers of NVIDIA's boards have 13 digits. The domain of a PCI address,
	// as NVML writes it, has 8.
	number = regexp.MustCompile(`[0-9]{9,}`)
	// A serial number within a name, which some boards and computers have where their
	// product should stand: "… S/N: 0324518", "SN:1650122003415".
	serial = regexp.MustCompile(`(?i)\b(?:S/?N|serial(?:\s+(?:number|no\.?))?)\s*[:#=]\s*[[:alnum:]-]+`)
)

// Name is the name of a product without serial numbers and UUIDs, and as it is if it
// has none.
func Name(text string) string {
	clean := uuid.ReplaceAllString(serial.ReplaceAllString(text, ""), "")
	if clean == text {
		return text
	}
	return strings.TrimSpace(clean)
}

// MaskName puts a 0 in the place of each character of a serial number or UUID, so
// that the name stays as long as it was. Name takes away as much of the result.
func MaskName(text []byte) []byte {
	text = serial.ReplaceAllFunc(text, func(match []byte) []byte {
		return zeros(match, bytes.LastIndexAny(match, ":#= \t")+1)
	})
	return uuid.ReplaceAllFunc(text, func(match []byte) []byte { return zeros(match, 0) })
}

func zeros(text []byte, from int) []byte {
	masked := slices.Clone(text)
	for i := from; i < len(masked); i++ {
		if masked[i] != '-' {
			masked[i] = '0'
		}
	}
	return masked
}

// UUIDs is the text without UUIDs.
func UUIDs(text string) string { return uuid.ReplaceAllString(text, "(UUID)") }

// Foreign is a text of a program that is not ours, without UUIDs and without
// numbers that are so long that they can be serial numbers.
func Foreign(text string) string { return number.ReplaceAllString(UUIDs(text), "(number)") }

// Error is err, if it is not nil, with a text without UUIDs.
func Error(err error) error {
	if err == nil {
		return nil
	}
	return redacted{err}
}

type redacted struct{ err error }

func (r redacted) Error() string { return UUIDs(r.err.Error()) }
func (r redacted) Unwrap() error { return r.err }

// Handler is h with UUIDs taken out of messages and attributes. The loggers of all
// commands write through it.
func Handler(h slog.Handler) slog.Handler { return handler{h} }

type handler struct{ slog.Handler }

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	clean := slog.NewRecord(r.Time, r.Level, UUIDs(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(attribute(a))
		return true
	})
	return h.Handler.Handle(ctx, clean)
}

func (h handler) WithAttrs(attributes []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(all(attributes))}
}

func (h handler) WithGroup(name string) slog.Handler { return handler{h.Handler.WithGroup(name)} }

func all(attributes []slog.Attr) []slog.Attr {
	clean := make([]slog.Attr, len(attributes))
	for i, a := range attributes {
		clean[i] = attribute(a)
	}
	return clean
}

// attribute is a without UUIDs in its value. A value that is no text, such as an
// error or a struct, becomes one if it has any; a list of texts stays a list.
func attribute(a slog.Attr) slog.Attr {
	switch v := a.Value.Resolve(); v.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(UUIDs(v.String()))
	case slog.KindGroup:
		a.Value = slog.GroupValue(all(v.Group())...)
	case slog.KindAny:
		if list, ok := v.Any().([]string); ok {
			list = slices.Clone(list)
			for i, text := range list {
				list[i] = UUIDs(text)
			}
			a.Value = slog.AnyValue(list)
		} else if text := fmt.Sprintf("%+v", v.Any()); uuid.MatchString(text) {
			a.Value = slog.StringValue(UUIDs(text))
		}
	}
	return a
}
