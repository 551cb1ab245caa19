package footprint

import (
	"reflect"
	"testing"
)

const smaps = `00400000-00411000 r--p 00000000 fe:00 42                                 /usr/bin/x
Size:                 68 kB
Rss:                  68 kB
Anonymous:             0 kB
Swap:                  0 kB
00411000-00817000 r-xp 00011000 fe:00 42                                 /usr/bin/x
Size:               4120 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
00cba000-00cbb000 r--p 008b9000 fe:00 42                                 /usr/bin/x
Anonymous:             4 kB
Swap:                  0 kB
00cbb000-00cbc000 r--p 008ba000 fe:00 42                                 /usr/bin/x
Anonymous:             0 kB
Swap:                  4 kB
00cbc000-00d19000 rw-p 008bb000 fe:00 42                                 /usr/bin/x
Anonymous:             0 kB
Swap:                  0 kB
00d19000-00e00000 r--p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
7f0000000000-7f0000001000 r-xp 00000000 fe:00 7                          /lib/libc.so.6
Anonymous:             0 kB
Swap:                  0 kB
`

func TestProgramPages(t *testing.T) {
	got := programPages([]byte(smaps), "/usr/bin/x")
	want := []mapping{{0x400000, 0x411000}, {0x411000, 0x817000}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

// The test itself goes on after its pages were unmapped.
func TestTrim(t *testing.T) {
	for range 3 {
		if err := Trim(); err != nil {
			t.Fatal(err)
		}
		TestProgramPages(t)
	}
}

func FuzzProgramPages(f *testing.F) {
	f.Add([]byte(smaps), "/usr/bin/x")
	f.Add([]byte("0-0 r--p 0 0 0 x\nAnonymous: 0 kB\nSwap: 0 kB\n"), "x")
	f.Fuzz(func(t *testing.T, smaps []byte, executable string) {
		for _, m := range programPages(smaps, executable) {
			if m.end <= m.start {
				t.Errorf("mapping %x", m)
			}
		}
	})
}
