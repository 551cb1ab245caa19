package nvml

import "fmt"

// An answer takes more memory than its text has bytes: "{}," is a whole GPU. So
// the text is bounded, and what is in it counted before any of it is decoded.
const (
	// maxAnswer bounds the text in bytes. 16 GPUs of 7 MIG devices each are 60 kB,
	// and 32 GPUs, which is as many as NVIDIA's driver takes, of maxMIGDevices each
	// 700 kB.
	maxAnswer = 1 << 20
	// maxValues bounds what all lists and objects hold together. In real answers a
	// value takes 20 bytes and more.
	maxValues = 1 << 16
	// maxFields bounds an object: a GPU has 15 fields, of which 12 can fail.
	maxFields = 32
	// maxDepth bounds how deep lists and objects lie: answer, gpus, GPU, mig,
	// devices, MIG device.
	maxDepth = 6
)

// MaxGPUs is more than any host has; NVML and recorded hosts may say anything.
const MaxGPUs = 1024

// lists are the lists of an answer, and how long each may be. A list of another
// name, such as one in capitals, which the decoder takes for the same, may be as
// long as an object.
var lists = map[string]int{"gpus": MaxGPUs, "devices": maxMIGDevices, "peers": MaxGPUs}

// checkCounts refuses a text that would take too much memory decoded. It must be
// one valid JSON value.
func checkCounts(text []byte) error {
	type group struct {
		of        string
		len, most int
	}
	var (
		groups        [maxDepth]group
		depth, values int
		name          []byte // what was in quotes last: before a list, its name
	)
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			start := i + 1
			for i = start; text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			name = text[start:i]
		case '{', '[':
			if depth == maxDepth {
				return fmt.Errorf("its answer has lists and objects more than %d deep", maxDepth)
			}
			groups[depth] = group{"values in one list or object", 1, maxFields}
			if most, ok := lists[string(name)]; ok && c == '[' {
				groups[depth] = group{string(name), 1, most}
			}
			depth++
		case '}', ']':
			depth--
		case ',':
			g := &groups[depth-1]
			g.len++
			values++
			if g.len > g.most {
				return fmt.Errorf("its answer has more than %d %s", g.most, g.of)
			}
			if values > maxValues {
				return fmt.Errorf("its answer has more than %d values", maxValues)
			}
		}
	}
	return nil
}
