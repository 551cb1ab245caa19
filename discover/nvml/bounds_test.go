package nvml

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-labeller/gpu-labeller/discover/pci/address"
)

// maxDecoded is what decoding an answer may allocate in all, in bytes: the agent
// has 64 MiB with its NVML process.
const maxDecoded = 20 << 20

// allocated is what f allocates, in bytes, freed or not.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// filled is head, as often part as fits an answer with a comma between, and tail.
func filled(head, part, tail string) string {
	n := (maxAnswer - len(head) - len(tail) + 1) / (len(part) + 1)
	return head + strings.TrimSuffix(strings.Repeat(part+",", n), ",") + tail
}

// times is part so often, with commas between.
func times(n int, part string) string {
	return strings.TrimSuffix(strings.Repeat(part+",", n), ",")
}

// A hostile library can make the child write anything. None of it may cost much
// more than its text.
func TestHostileAnswers(t *testing.T) {
	// gpus is as many as are taken, in as long a text.
	gpus := func(gpu string) string {
		head, tail := `{"init":"SUCCESS","gpus":[`+times(MaxGPUs, gpu)+`],"detail":"`, `"}`
		return head + strings.Repeat("x", maxAnswer-len(head)-len(tail)) + tail
	}
	devices := `"mig":{"devices":[` + times(maxMIGDevices, "{}") + `]}`
	const tooMany = "more than"
	for _, test := range []struct{ name, text, want string }{
		{"GPUs", filled(`{"init":"SUCCESS","gpus":[`, "{}", "]}"), tooMany},
		{"MIG devices", filled(`{"init":"SUCCESS","gpus":[{"mig":{"devices":[`, "{}", "]}}]}"), tooMany},
		{"one MIG device too many", `{"init":"SUCCESS","gpus":[{"mig":{"devices":[` + times(maxMIGDevices+1, "{}") + `]}}]}`, "more than 64 devices"},
		{"peers", filled(`{"init":"SUCCESS","gpus":[{"nvlink":{"peers":[`, "0", "]}}]}"), tooMany},
		{"errors", filled(`{"init":"SUCCESS","errors":{`, `"":""`, "}}"), tooMany},
		{"errors of a GPU", filled(`{"init":"SUCCESS","gpus":[{"errors":{`, `"":""`, "}}]}"), tooMany},
		{"lists in capitals", filled(`{"init":"SUCCESS","GPUS":[`, "{}", "]}"), tooMany},
		{"lists with escapes", filled(`{"init":"SUCCESS","\u0067pus":[`, "{}", "]}"), tooMany},
		{"a quote in a name", filled(`{"init":"SUCCESS","\"":"\\","gpus":[`, "{}", "]}"), tooMany},
		{"GPUs again and again", filled(`{"init":"SUCCESS",`, `"gpus":null,"gpus":[`+times(MaxGPUs, "{}")+`]`, "}"), tooMany},
		{"MIG devices again and again", filled(`{"init":"SUCCESS","gpus":[{`, `"mig":null,`+devices, "}]}"), tooMany},
		{"deep", strings.Repeat("[", maxAnswer/2-1) + strings.Repeat("]", maxAnswer/2-1), "max depth"},
		{"MIG devices of many GPUs", filled(`{"init":"SUCCESS","gpus":[`, "{"+devices+"}", "]}"), tooMany},
		{"a long text", `{"init":"SUCCESS","detail":"` + strings.Repeat("x", maxAnswer-40) + `"}`, ""},
		{"escapes", `{"init":"SUCCESS","detail":"` + strings.Repeat(`\u0001`, maxAnswer/6-10) + `"}`, ""},
		{"all GPUs with MIG devices", gpus(`{"mig":{"devices":[` + times(63, "{}") + `]}}`), ""},
		{"all GPUs with MIG devices, twice", gpus(`{"mig":{"devices":[` + times(31, "{}") + `]},"mig":null,"mig":{"devices":[` + times(31, "{}") + `]}}`), ""},
		{"all GPUs with peers", gpus(`{"nvlink":{"peers":[` + times(63, "0") + `]}}`), ""},
		{"all GPUs with errors", gpus(`{"errors":{` + times(maxFields, `"":""`) + `}}`), ""},
		{"all GPUs with different errors", gpus(`{"errors":{` + distinct(maxFields) + `}}`), ""},
		{"all GPUs with all parts", gpus(`{"pci_address":"00000000:00:00.0","compute_capability":{},"mig":{"devices":[` + times(40, "{}") + `]},"fabric":{},"nvlink":{"peers":[0]},"errors":{"":""}}`), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if len(test.text) > maxAnswer {
				t.Fatalf("%d bytes", len(test.text))
			}
			var a Answer
			var err error
			took := allocated(func() { a, err = decode(strings.NewReader(test.text)) })
			t.Logf("%d bytes, %d GPUs, allocated %.1f MiB: %v", len(test.text), len(a.GPUs), float64(took)/(1<<20), err)
			if took > maxDecoded {
				t.Errorf("allocated %d bytes, want at most %d", took, maxDecoded)
			}
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func distinct(n int) string {
	var parts []string
	for i := range n {
		parts = append(parts, fmt.Sprintf(`"%d":"%d"`, i, i))
	}
	return strings.Join(parts, ",")
}

// The largest answers that can be are taken.
func TestLargestAnswers(t *testing.T) {
	device := MIGDevice{"1c.3g.141gb+me.all", 13, 6, 143771, 132, 7, 7, 8, 8, 8, 8, 1}
	gpu := GPU{
		Index: 1023, Name: strings.Repeat("N", 95), UUID: "GPU-5a1b2c3d-0000-1111-2222-333344445555",
		PCIAddress: &address.Address{Domain: 0xffffffff, Bus: 0xff}, MemoryBytes: 1 << 40, ComputeCapability: &ComputeCapability{10, 3},
		Architecture: "blackwell", Brand: "quadro_rtx", AddressingMode: "none", MIG: &MIG{Enabled: true, Pending: true},
		Fabric: &Fabric{FabricCompleted, Success, "7b968a6d-c8aa-45e1-9e07-e1e51be99c31", 1 << 31}, Errors: Errors{"nvlink": NotSupported},
	}
	gpus := func(n, devices, peers int) []GPU {
		g, mig := gpu, *gpu.MIG
		mig.Devices = slices.Repeat([]MIGDevice{device}, devices)
		g.MIG, g.NVLink = &mig, &NVLink{Version: "5.0", Peers: slices.Repeat([]int{1000}, peers)}
		return slices.Repeat([]GPU{g}, n)
	}
	for _, test := range []struct {
		name string
		gpus []GPU
	}{
		{"as many GPUs as the driver takes, each with the most MIG devices that NVML may count", gpus(32, maxMIGDevices, 31)},
		{"a hundred GPUs of 7 MIG devices", gpus(100, 7, 99)},
		{"as many GPUs as are taken", gpus(MaxGPUs, 0, 0)},
	} {
		t.Run(test.name, func(t *testing.T) {
			text, err := json.Marshal(Answer{Init: Success, GPUs: test.gpus})
			if err != nil {
				t.Fatal(err)
			}
			a, err := decode(bytes.NewReader(text))
			if err != nil || len(a.GPUs) != len(test.gpus) {
				t.Errorf("%d bytes: %d of %d GPUs: %v", len(text), len(a.GPUs), len(test.gpus), err)
			}
			t.Logf("%d bytes, %d commas", len(text), bytes.Count(text, []byte(",")))
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"init":"SUCCESS","gpus":[{"index":0,"name":"x","pci_address":"0000:01:00.0","mig":{"enabled":true,"devices":[{"profile":"1g.5gb"}]}}]}`))
	f.Add([]byte(`{"failure":{"kind":"timeout","text":"late"}}`))
	f.Add([]byte(`{"init":"SUCCESS","gpus":null,"errors":{"gpus":"UNKNOWN"}}`))
	f.Add([]byte(`{"init":"SUCCESS","gpus":[{"nvlink":{"version":"4.0","peers":[1,2]},"fabric":{"state":"completed"},"errors":{"uuid":"UNKNOWN"}}]}`))
	f.Add([]byte(`{"init":"S\\","gpus":[{"mig":{"devices":[` + times(maxMIGDevices+1, "{}") + `]}}]}`))
	f.Add([]byte(`{"init":"S\"","gpus":[` + times(MaxGPUs+1, "{}") + `]}`))
	f.Add([]byte(`{"init":"S","Gpus":[{"errors":{` + distinct(maxFields+1) + `}}]}`))
	f.Add([]byte(`{"init":"S","gpus":[{"mig":{"Devices":[{},{}]},"MIG":null,"mig":{"devices":[{}]}}]} more`))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := decode(bytes.NewReader(data))
		if err != nil {
			return
		}
		if a.Failure == nil && a.Init == "" {
			t.Error("an answer that says nothing")
		}
		values := len(a.GPUs) + len(a.Errors)
		if len(a.GPUs) > MaxGPUs || len(a.Errors) > maxFields {
			t.Errorf("%d GPUs, %d errors", len(a.GPUs), len(a.Errors))
		}
		for _, g := range a.GPUs {
			values += len(g.Errors)
			if len(g.Errors) > maxFields {
				t.Errorf("%d errors of a GPU", len(g.Errors))
			}
			if g.MIG != nil {
				values += len(g.MIG.Devices)
				if len(g.MIG.Devices) > maxMIGDevices {
					t.Errorf("%d MIG devices", len(g.MIG.Devices))
				}
			}
			if g.NVLink != nil {
				values += len(g.NVLink.Peers)
				if len(g.NVLink.Peers) > MaxGPUs {
					t.Errorf("%d peers", len(g.NVLink.Peers))
				}
			}
		}
		if values > 2*maxValues { // the first of a list has no comma
			t.Errorf("%d values", values)
		}
	})
}
