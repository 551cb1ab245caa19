package pci

import (
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/jaypipes/ghw"
	ghwpci "github.com/jaypipes/ghw/pkg/pci"
	"github.com/jaypipes/pcidb"
)

// ids are what identifies a kind of PCI function.
type ids struct {
	vendor, device                   uint16
	subsystemVendor, subsystemDevice uint16
	class                            uint32
}

// modalias writes ids as the kernel does in a function's modalias.
func (i ids) modalias() string {
	return fmt.Sprintf("pci:v%08Xd%08Xsv%08Xsd%08Xbc%02Xsc%02Xi%02X",
		i.vendor, i.device, i.subsystemVendor, i.subsystemDevice,
		i.class>>16, i.class>>8&0xff, i.class&0xff)
}

// decoder is a ghw that decodes and does nothing else. It is safe for concurrent
// use: once made, it only reads its empty database.
var decoder = sync.OnceValues(newDecoder)

// newDecoder makes a ghw that lists no functions, as its chroot can hold no
// folder (its list is empty anyhow if one function has no modalias or an unusual
// domain), that needs no pci.ids and gives no names, and that logs nothing.
// Arguments win over GHW_CHROOT and the like in the environment.
func newDecoder() (*ghwpci.Info, error) {
	return ghwpci.New(
		ghw.WithChroot(os.DevNull),
		ghw.WithDisableTopology(),
		ghw.WithPCIDB(&pcidb.PCIDB{}),
		ghw.WithLogger(slog.New(slog.DiscardHandler)),
	)
}

// parseModalias decodes a modalias, by ghw.
func parseModalias(modalias string) (ids, error) {
	// ghw cuts at fixed places whatever stands between them.
	if !isModalias(modalias) {
		return ids{}, Parsing(modalias, errNotModalias)
	}
	info, err := decoder()
	if err != nil {
		return ids{}, err
	}
	d := info.ParseDevice("", modalias) // the address is only copied
	if d == nil {
		return ids{}, Parsing(modalias, errNotModalias)
	}
	var found ids
	for _, field := range []struct {
		id   *uint16
		text string
	}{
		{&found.vendor, d.Vendor.ID},
		{&found.device, d.Product.ID},
		{&found.subsystemVendor, d.Subsystem.VendorID},
		{&found.subsystemDevice, d.Subsystem.ID},
	} {
		if *field.id, err = parseID(field.text); err != nil {
			return ids{}, Parsing(modalias, errNotHex)
		}
	}
	found.class, err = parseClass(d.Class.ID + d.Subclass.ID + d.ProgrammingInterface.ID)
	if err != nil {
		return ids{}, Parsing(modalias, errNotHex)
	}
	return found, nil
}

// isModalias tells whether s is laid out as a PCI modalias. A longer one is
// taken too: the kernel may add to it.
func isModalias(s string) bool {
	return len(s) >= 53 && s[:5] == "pci:v" && s[13] == 'd' &&
		s[22:24] == "sv" && s[32:34] == "sd" &&
		s[42:44] == "bc" && s[46:48] == "sc" && s[50] == 'i'
}
