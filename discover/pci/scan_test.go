package pci

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jaypipes/ghw"
	"github.com/jaypipes/pcidb"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
)

const at = "0000:1b:00.0"

func TestScanOneFunction(t *testing.T) {
	none := func(*Function) {}
	tests := []struct {
		name     string
		address  string // at, if empty
		changes  files  // to h200
		want     func(f *Function)
		problems []string // after "PCI device ADDRESS: "
	}{
		{name: "all files", want: none},
		{name: "5-digit domain of Hyper-V", address: "c05b4:00:00.0", want: none},
		{name: "behind VMD", address: "10000:e1:00.0", want: none},
		{name: "8-digit domain", address: "ffffffff:ff:1f.7", want: none},
		{
			name:    "upper-case values, no line ends",
			changes: files{"class": "0X030200", "vendor": "0x10DE", "subsystem_vendor": "0x10DE", "subsystem_device": "0x18BF", "revision": "0xA1"},
			want:    none,
		},
		{
			name:    "no subsystem, no modalias",
			changes: files{"subsystem_vendor": absent, "subsystem_device": absent, "modalias": absent},
			want:    func(f *Function) { f.SubsystemVendor, f.SubsystemDevice = 0, 0 },
		},
		{name: "subsystem from modalias", changes: files{"subsystem_vendor": absent, "subsystem_device": absent}, want: none},
		{name: "no modalias", changes: files{"modalias": absent}, want: none},
		{
			name:     "modalias cut short",
			changes:  files{"modalias": "pci:v000010DEd00002335\n"},
			want:     none,
			problems: []string{`modalias: parsing "pci:v000010DEd00002335": want pci:v…d…sv…sd…bc…sc…i…`},
		},
		{
			name:     "modalias of USB, and as long",
			changes:  files{"modalias": "usb:v1D6Bp0002d0618dc09dsc00dp01ic09isc00ip00in00xxxxx"},
			want:     none,
			problems: []string{`modalias: parsing "usb:v1D6Bp0002d0618dc09dsc00dp01ic09isc0": want pci:v…d…sv…sd…bc…sc…i…`},
		},
		{
			name:     "modalias with letters for digits",
			changes:  files{"modalias": "pci:v0000XXXXd00002335sv000010DEsd000018BFbc03sc02i00"},
			want:     none,
			problems: []string{`modalias: parsing "pci:v0000XXXXd00002335sv000010DEsd000018": want a hexadecimal number`},
		},
		{
			name:    "modalias that disagrees",
			changes: files{"modalias": "pci:v00001002d000074A1sv00001002sd000074A1bc12sc00i01"},
			want:    none,
		},
		{
			name:     "class missing",
			changes:  files{"class": absent},
			want:     none,
			problems: []string{`class: no such file or directory`},
		},
		{
			name:     "vendor unreadable",
			changes:  files{"vendor": folder},
			want:     none,
			problems: []string{`vendor: not a regular file`},
		},
		{
			name:     "ID files missing",
			changes:  files{"class": absent, "vendor": absent, "device": absent, "subsystem_vendor": absent, "subsystem_device": absent},
			want:     none,
			problems: []string{`class: no such file or directory`, `vendor: no such file or directory`, `device: no such file or directory`},
		},
		{
			name:     "class that is none",
			changes:  files{"class": "zz\n", "modalias": absent},
			problems: []string{`class: parsing "zz": invalid syntax`},
		},
		{
			name:     "vendor too large",
			changes:  files{"vendor": "0x110de\n", "modalias": absent},
			problems: []string{`vendor: parsing "0x110de": value out of range`},
		},
		{
			name:     "empty folder",
			changes:  deleted(h200),
			problems: []string{`class: no such file or directory`, `vendor: no such file or directory`},
		},
		{
			name:     "device missing, no modalias",
			changes:  files{"device": absent, "modalias": absent},
			want:     func(f *Function) { f.Device = 0 },
			problems: []string{`device: no such file or directory`},
		},
		{
			name:     "revision missing",
			changes:  files{"revision": absent},
			want:     func(f *Function) { f.Revision = 0 },
			problems: []string{`revision: no such file or directory`},
		},
		{name: "no NUMA node", changes: files{"numa_node": "-1\n"}, want: func(f *Function) { f.NUMANode = nil }},
		{name: "kernel without NUMA", changes: files{"numa_node": absent}, want: func(f *Function) { f.NUMANode = nil }},
		{
			name:     "NUMA node that is none",
			changes:  files{"numa_node": "one\n"},
			want:     func(f *Function) { f.NUMANode = nil },
			problems: []string{`numa_node: parsing "one": invalid syntax`},
		},
		{
			name:    "no SR-IOV",
			changes: files{"sriov_totalvfs": absent, "sriov_numvfs": absent},
			want:    func(f *Function) { f.TotalVFs, f.NumVFs = nil, nil },
		},
		{
			name:    "no VFs to be had",
			changes: files{"sriov_totalvfs": "0\n"},
			want:    func(f *Function) { f.TotalVFs = new(0) },
		},
		{
			name:     "fewer than no VFs",
			changes:  files{"sriov_numvfs": "-4\n"},
			want:     func(f *Function) { f.NumVFs = nil },
			problems: []string{`sriov_numvfs: parsing "-4": invalid syntax`},
		},
		{
			name: "VF",
			changes: files{
				"physfn": linkTo + "../0000:1a:00.0", "driver": absent,
				"sriov_totalvfs": absent, "sriov_numvfs": absent,
				"current_link_speed": "Unknown\n", "current_link_width": "0\n",
				"max_link_speed": "Unknown speed\n", "max_link_width": "255\n",
			},
			want: func(f *Function) {
				f.PhysicalFunction = new(mustAddress("0000:1a:00.0"))
				f.Driver, f.TotalVFs, f.NumVFs = "", nil, nil
				f.LinkSpeed, f.LinkWidth, f.MaxLinkSpeed, f.MaxLinkWidth = "", 0, "", 0
			},
		},
		{
			name:     "physfn that is no address",
			changes:  files{"physfn": linkTo + "../platform"},
			want:     none,
			problems: []string{`physfn: parsing PCI address "platform": want domain:bus:device.function in hexadecimal`},
		},
		{name: "vfio-pci", changes: files{"driver": linkTo + "../../../bus/pci/drivers/vfio-pci"}, want: func(f *Function) { f.Driver = "vfio-pci" }},
		{name: "dangling driver", changes: files{"driver": linkTo + "/gone/nouveau"}, want: func(f *Function) { f.Driver = "nouveau" }},
		{name: "no driver", changes: files{"driver": absent}, want: func(f *Function) { f.Driver = "" }},
		{name: "no IOMMU", changes: files{"iommu_group": absent}, want: func(f *Function) { f.IOMMUGroup = "" }},
		{
			name:     "links that name nothing",
			changes:  files{"driver": linkTo + "/", "iommu_group": linkTo + "../.."},
			want:     func(f *Function) { f.Driver, f.IOMMUGroup = "", "" },
			problems: []string{`driver: parsing "/": want a path that ends in a name`, `iommu_group: parsing "../..": want a path that ends in a name`},
		},
		{
			name:     "a file and a folder in a link's place",
			changes:  files{"driver": "nvidia\n", "iommu_group": folder},
			want:     func(f *Function) { f.Driver, f.IOMMUGroup = "", "" },
			problems: []string{`driver: not a symbolic link`, `iommu_group: not a symbolic link`},
		},
		{
			name:     "a link that is a loop",
			changes:  files{"driver": linkTo + "driver"},
			want:     func(f *Function) { f.Driver = "driver" },
			problems: nil,
		},
		{
			name:    "conventional PCI",
			changes: files{"current_link_speed": absent, "current_link_width": absent, "max_link_speed": absent, "max_link_width": absent},
			want: func(f *Function) {
				f.LinkSpeed, f.LinkWidth, f.MaxLinkSpeed, f.MaxLinkWidth = "", 0, "", 0
			},
		},
		{
			name:    "link of a function that does not answer",
			changes: files{"current_link_speed": "Unknown\n", "current_link_width": "63\n"},
			want:    func(f *Function) { f.LinkSpeed, f.LinkWidth = "", 0 },
		},
		{
			name:     "link speed and width that are none",
			changes:  files{"current_link_speed": "fast\n", "current_link_width": "x16\n"},
			want:     func(f *Function) { f.LinkSpeed, f.LinkWidth = "", 0 },
			problems: []string{`current_link_speed: parsing "fast": want a speed in GT/s`, `current_link_width: parsing "x16": invalid syntax`},
		},
		{
			name:    "vGPU",
			changes: files{"config": string(vgpuConfig("550.90.05", "r550_00"))},
			want: func(f *Function) {
				f.VGPU = &VGPU{Present: true, HostDriverVersion: "550.90.05", HostDriverBranch: "r550_00"}
			},
		},
		{
			name:    "4096 bytes of configuration space",
			changes: files{"config": string(append(slices.Clone(h200Config), make([]byte, 4096-256)...))},
			want:    none,
		},
		{
			name:     "configuration space without CAP_SYS_ADMIN",
			changes:  files{"config": string(h200Config[:64])},
			want:     func(f *Function) { f.VGPU = nil },
			problems: []string{`config: only the first 64 bytes of configuration space can be read without CAP_SYS_ADMIN`},
		},
		{
			name:     "fell off the bus",
			changes:  files{"config": strings.Repeat("\xff", 256)},
			want:     func(f *Function) { f.VGPU = nil },
			problems: []string{`config: the function does not answer: its configuration space reads as ones`},
		},
		{
			name:     "vGPU without a version",
			changes:  files{"config": string(change(vgpuConfig("550.90.05", "r550_00"), 0xd6, 0))},
			want:     func(f *Function) { f.VGPU = &VGPU{Present: true} },
			problems: []string{`config: vGPU capability at 0xd0: record 0: length 0, with 22 bytes left`},
		},
		{
			name:    "config of another vendor is not read",
			changes: files{"config": folder, "vendor": "0x1002\n"},
			want:    func(f *Function) { f.Vendor, f.VGPU = AMD, nil },
		},
		{
			name:     "10 MB of text",
			changes:  files{"class": strings.Repeat("0", 10<<20), "numa_node": strings.Repeat("1", 10<<20)},
			want:     func(f *Function) { f.NUMANode = nil },
			problems: []string{`class: longer than the file can be (4096 bytes)`, `numa_node: longer than the file can be (4096 bytes)`},
		},
		{
			name:     "binary garbage",
			changes:  files{"device": "\x80\x81\x00\xff\x1b[2J", "modalias": strings.Repeat("\xfe\x00", 100)},
			want:     func(f *Function) { f.Device = 0 },
			problems: []string{`modalias: parsing "` + strings.Repeat(`\xfe\x00`, 20) + `": want pci:v…d…sv…sd…bc…sc…i…`, `device: parsing "\x80\x81\x00\xff\x1b[2J": invalid syntax`},
		},
		{
			name:     "empty files",
			changes:  files{"device": "", "revision": "\n", "modalias": absent},
			want:     func(f *Function) { f.Device, f.Revision = 0, 0 },
			problems: []string{`device: parsing "": invalid syntax`, `revision: parsing "": invalid syntax`},
		},
		{
			name:     "FIFO, folder, links and a loop in a file's place",
			changes:  files{"class": fifo, "device": folder, "numa_node": linkTo + "revision", "max_link_width": linkTo + "/dev/zero", "sriov_numvfs": linkTo + "sriov_numvfs"},
			want:     func(f *Function) { f.NUMANode, f.MaxLinkWidth, f.NumVFs = nil, 0, nil },
			problems: []string{`class: not a regular file`, `device: not a regular file`, `numa_node: not a regular file`, `sriov_numvfs: not a regular file`, `max_link_width: not a regular file`},
		},
		{
			name:     "configuration space that is no file",
			changes:  files{"config": fifo},
			want:     func(f *Function) { f.VGPU = nil },
			problems: []string{`config: not a regular file`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			address := tt.address
			if address == "" {
				address = at
			}
			// Two others must come through whatever this one is like.
			before, after := "0000:00:00.0", "fffffffe:00:00.0"
			if mustAddress(address).Domain == 0xffffffff {
				after = "fffffffe:01:00.0"
			}
			root := host(t, map[string]files{before: h200, address: h200.with(tt.changes), after: h200})

			got, problems, err := Scan(root, all)
			if err != nil {
				t.Fatal(err)
			}
			want := []Function{h200Function(before), h200Function(after)}
			if tt.want != nil {
				f := h200Function(address)
				tt.want(&f)
				want = append(want, f)
			}
			slices.SortFunc(want, func(a, b Function) int { return a.Address.Compare(b.Address) })
			compare(t, got, want)
			var wantProblems []string
			for _, p := range tt.problems {
				wantProblems = append(wantProblems, "PCI device "+address+": "+p)
			}
			compareProblems(t, problems, wantProblems)
		})
	}
}

// deleted is f with every file absent.
func deleted(f files) files {
	g := files{}
	for name := range f {
		g[name] = absent
	}
	return g
}

func compare(t *testing.T, got, want []Function) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		g, w := "nothing", "nothing"
		if i < len(got) {
			g = show(got[i])
		}
		if i < len(want) {
			w = show(want[i])
		}
		if g != w {
			t.Errorf("function %d:\n got %s\nwant %s", i, g, w)
		}
	}
}

func compareProblems(t *testing.T, got []error, want []string) {
	t.Helper()
	var texts []string
	for _, err := range got {
		texts = append(texts, err.Error())
	}
	if !slices.Equal(texts, want) {
		t.Errorf("problems:\n got %q\nwant %q", texts, want)
	}
}

func TestScanSortsByAddress(t *testing.T) {
	functions := map[string]files{}
	want := []string{"0000:0a:00.0", "0000:1b:00.0", "0000:1b:00.1", "0000:1b:01.0", "0001:00:00.0", "10000:e1:00.0", "c05b4:00:00.0"}
	for _, address := range want {
		functions[address] = h200
	}
	got, problems, err := Scan(host(t, functions), all)
	if err != nil || len(problems) != 0 {
		t.Fatal(err, problems)
	}
	for i, f := range got {
		if f.Address.String() != want[i] {
			t.Errorf("function %d: got %v, want %s", i, f.Address, want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %d functions, want %d", len(got), len(want))
	}
}

func TestScanWanted(t *testing.T) {
	root := host(t, map[string]files{
		"0000:01:00.0": h200,
		// What is not wanted is not read, so its faults are not told.
		"0000:02:00.0": nvme.with(files{"modalias": "zz", "device": folder, "numa_node": fifo}),
		// Known from the modalias alone, and not wanted.
		"0000:03:00.0": nvme.with(files{"class": absent}),
	})
	got, problems, err := Scan(root, gpus)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, got, []Function{h200Function("0000:01:00.0")})
	compareProblems(t, problems, []string{"PCI device 0000:03:00.0: class: no such file or directory"})
}

func TestScanOddEntries(t *testing.T) {
	root := host(t, map[string]files{at: h200, "lost+found": h200})
	list := root.Path(devicesPath)
	symlink(t, "../../../devices/pci0000:00/0000:02:00.0", filepath.Join(list, "0000:02:00.0")) // dangles
	symlink(t, "0000:03:00.0", filepath.Join(list, "0000:03:00.0"))                             // a loop
	write(t, filepath.Join(list, "0000:04:00.0"), "a file")
	write(t, filepath.Join(list, "0000:05:00.0"), fifo)
	write(t, filepath.Join(list, "0000:06:00.0"), folder)
	write(t, filepath.Join(list, "0000:20:00.0\n"), folder) // device 0x20 is none either

	got, problems, err := Scan(root, all)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, got, []Function{h200Function(at)})
	compareProblems(t, problems, []string{
		`PCI device 0000:02:00.0: it went away while it was read: no such file or directory`,
		`PCI device 0000:03:00.0: too many levels of symbolic links`,
		`PCI device 0000:04:00.0: not a directory`,
		`PCI device 0000:05:00.0: not a directory`,
		`PCI device 0000:06:00.0: class: no such file or directory`,
		`PCI device 0000:06:00.0: vendor: no such file or directory`,
		`/sys/bus/pci/devices: parsing PCI address "0000:20:00.0\n": want domain:bus:device.function in hexadecimal`,
		`/sys/bus/pci/devices: parsing PCI address "lost+found": want domain:bus:device.function in hexadecimal`,
	})
	if !errors.Is(problems[0], ErrGone) || errors.Is(problems[1], ErrGone) || errors.Is(problems[4], ErrGone) {
		t.Errorf("ErrGone is of the function that is gone: %v", problems)
	}
}

// A plain folder in the list, as in a recorded host, is as good as a link.
func TestScanFolderInsteadOfLink(t *testing.T) {
	root := host(t, nil)
	dir := root.Path(devicesPath, at)
	mkdir(t, dir)
	for name, content := range h200 {
		write(t, filepath.Join(dir, name), content)
	}
	got, problems, err := Scan(root, all)
	if err != nil || len(problems) != 0 {
		t.Fatal(err, problems)
	}
	compare(t, got, []Function{h200Function(at)})
}

func TestScanVanishes(t *testing.T) {
	root := host(t, map[string]files{at: h200, "0000:1c:00.0": h200})
	got, problems, err := Scan(root, func(uint32, uint16) bool {
		// Class and vendor are read; the rest is not to be had.
		if err := os.RemoveAll(root.Path("sys/devices/pci0000:00", at)); err != nil {
			t.Fatal(err)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, got, []Function{h200Function("0000:1c:00.0")})
	compareProblems(t, problems, []string{"PCI device 0000:1b:00.0: it went away while it was read: no such file or directory"})
	var field *FieldError
	if !errors.As(problems[0], &field) || *field != (FieldError{Address: at, Err: field.Err}) || !errors.Is(field, ErrGone) {
		t.Errorf("got %#v", problems[0])
	}
}

func TestScanTellsTruncatedConfig(t *testing.T) {
	_, problems, err := Scan(host(t, map[string]files{at: h200.with(files{"config": string(h200Config[:64])})}), all)
	if err != nil || len(problems) != 1 {
		t.Fatal(err, problems)
	}
	var field *FieldError
	if !errors.Is(problems[0], ErrConfigTruncated) || !errors.As(problems[0], &field) || field.Address != at || field.Field != "config" {
		t.Errorf("got %#v", problems[0])
	}
}

func TestScanNoList(t *testing.T) {
	tests := []struct {
		name string
		make func(t *testing.T, root string)
		want error
	}{
		{"no PCI bus", func(t *testing.T, root string) { mkdir(t, filepath.Join(root, "sys/bus/platform")) }, nil},
		{"no functions", func(t *testing.T, root string) { mkdir(t, filepath.Join(root, devicesPath)) }, nil},
		{"no root", func(t *testing.T, root string) { os.Remove(root) }, fs.ErrNotExist},
		{"no sysfs", func(t *testing.T, root string) {}, fs.ErrNotExist},
		{"no buses", func(t *testing.T, root string) { mkdir(t, filepath.Join(root, "sys/devices")) }, fs.ErrNotExist},
		{"PCI bus without a list", func(t *testing.T, root string) { mkdir(t, filepath.Join(root, "sys/bus/pci")) }, fs.ErrNotExist},
		{"a dangling link for a bus", func(t *testing.T, root string) {
			mkdir(t, filepath.Join(root, "sys/bus"))
			symlink(t, "gone", filepath.Join(root, "sys/bus/pci"))
		}, fs.ErrNotExist},
		{"no permission", func(t *testing.T, root string) {
			if os.Geteuid() == 0 {
				t.Skip("root may read everything")
			}
			mkdir(t, filepath.Join(root, devicesPath))
			if err := os.Chmod(filepath.Join(root, devicesPath), 0); err != nil {
				t.Fatal(err)
			}
		}, fs.ErrPermission},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			tt.make(t, root)
			functions, problems, err := Scan(hostfs.Root(root), all)
			if !errors.Is(err, tt.want) || len(functions) != 0 || len(problems) != 0 {
				t.Errorf("got %v, %v, error %v, want error %v", functions, problems, err, tt.want)
			}
			if err != nil && (strings.Count(err.Error(), "/sys/bus") != 1 || strings.Contains(err.Error(), root)) {
				t.Errorf("error %q: want the path below the root in it, once", err)
			}
		})
	}
}

func TestScanTwiceIsEqual(t *testing.T) {
	functions := map[string]files{}
	for i := range 20 {
		functions[fmt.Sprintf("%04x:%02x:00.0", i%3, i)] = h200.with(files{"numa_node": "zz"})
	}
	root := host(t, functions)
	a, aProblems, _ := Scan(root, all)
	b, bProblems, _ := Scan(root, all)
	if !reflect.DeepEqual(a, b) || !reflect.DeepEqual(aProblems, bProblems) {
		t.Error("two scans of one host differ")
	}
}

func TestScanAtOnce(t *testing.T) {
	root := host(t, map[string]files{at: h200, "0000:1c:00.0": h200.with(files{"modalias": absent})})
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			got, problems, err := Scan(root, all)
			if err != nil || len(got) != 2 || len(problems) != 0 {
				t.Error(got, problems, err)
			}
		})
	}
}

// On a tree that is as ghw wants it, ghw's own list is ours.
func TestScanEqualsGHW(t *testing.T) {
	root := host(t, map[string]files{
		"0000:00:1f.0":  nvme.with(files{"revision": "0x11\n", "driver": absent}),
		"0000:01:00.0":  h200,
		"0000:02:00.0":  h200.with(files{"driver": linkTo + "../../../bus/pci/drivers/vfio-pci", "revision": "0xff\n"}),
		"10000:e1:00.0": nvme,
	})
	functions, problems, err := Scan(root, all)
	if err != nil || len(problems) != 0 {
		t.Fatal(err, problems)
	}
	info, err := ghw.PCI(ghw.WithChroot(string(root)), ghw.WithDisableTopology(), ghw.WithPCIDB(&pcidb.PCIDB{}),
		ghw.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	var ours, theirs []string
	for _, f := range functions {
		ours = append(ours, fmt.Sprintf("%v %04x:%04x %04x:%04x %06x %q 0x%02x",
			f.Address, f.Vendor, f.Device, f.SubsystemVendor, f.SubsystemDevice, f.Class, f.Driver, f.Revision))
	}
	for _, d := range info.Devices {
		theirs = append(theirs, fmt.Sprintf("%s %s:%s %s:%s %s%s%s %q %s",
			d.Address, d.Vendor.ID, d.Product.ID, d.Subsystem.VendorID, d.Subsystem.ID,
			d.Class.ID, d.Subclass.ID, d.ProgrammingInterface.ID, d.Driver, d.Revision))
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	if len(ours) != 4 || !slices.Equal(ours, theirs) {
		t.Errorf("\n got %q\nghw: %q", ours, theirs)
	}
}

// The environment has no say in what ghw does for us.
func TestDecoderIgnoresEnvironment(t *testing.T) {
	t.Setenv("GHW_CHROOT", string(host(t, map[string]files{at: h200})))
	t.Setenv("GHW_LOG_LEVEL", "debug")
	t.Setenv("GHW_LOG_LOGFMT", "1")
	t.Setenv("PCIDB_PATH", "/nonexistent")
	info, err := newDecoder()
	if err != nil || len(info.Devices) != 0 {
		t.Errorf("got %v, %v", info, err)
	}
}

func BenchmarkScan6(b *testing.B) {
	functions := map[string]files{"0000:06:00.0": h200}
	for i := range 5 {
		functions["0000:00:0"+strconv.Itoa(i)+".0"] = nvme
	}
	benchmarkScan(b, functions, gpus, 1)
}

func BenchmarkScan200(b *testing.B) {
	functions := map[string]files{}
	for i := range 200 {
		f := nvme
		if i%12 == 0 && i < 192 {
			f = h200
		}
		functions[fmt.Sprintf("0000:%02x:00.0", i)] = f
	}
	benchmarkScan(b, functions, gpus, 16)
}

func BenchmarkScan2000VFs(b *testing.B) {
	vf := h200.with(files{
		"physfn": linkTo + "../0000:00:00.0", "driver": linkTo + "../../../bus/pci/drivers/vfio-pci",
		"sriov_totalvfs": absent, "sriov_numvfs": absent,
	})
	functions := map[string]files{}
	for i := range 2000 {
		functions[fmt.Sprintf("0000:%02x:%02x.%x", i>>8, i>>3&0x1f, i&7)] = vf
	}
	benchmarkScan(b, functions, gpus, 2000)
}

// 2,000 functions of which few are GPUs, such as the virtual functions of NICs.
func BenchmarkScan2000(b *testing.B) {
	functions := map[string]files{}
	for i := range 2000 {
		f := nvme
		if i%125 == 0 {
			f = h200
		}
		functions[fmt.Sprintf("0000:%02x:%02x.%x", i>>8, i>>3&0x1f, i&7)] = f
	}
	benchmarkScan(b, functions, gpus, 16)
}

func benchmarkScan(b *testing.B, functions map[string]files, wanted func(uint32, uint16) bool, want int) {
	root := host(b, functions)
	b.ReportAllocs()
	for b.Loop() {
		got, problems, err := Scan(root, wanted)
		if err != nil || len(problems) != 0 || len(got) != want {
			b.Fatal(len(got), problems, err)
		}
	}
}
