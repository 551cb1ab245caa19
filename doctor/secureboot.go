package doctor

import (
	"fmt"

	"github.com/gpu-labeller/gpu-labeller/discover/hostfs"
)

// secureBoot is whether the firmware lets only signed code run, and with it, on
// most distributions, only signed kernel modules.
type secureBoot struct {
	on   bool
	text string // what was seen, with its path
}

// The variable SecureBoot of the EFI global namespace, as efivarfs shows it
// (UEFI 2.10, section 3.3; Linux, Documentation/filesystems/efivarfs.rst): four
// bytes of attributes, then its one byte.
const secureBootFile = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"

func readSecureBoot(root hostfs.Root) secureBoot {
	if !root.Exists("/sys/firmware/efi") {
		return secureBoot{text: "the host was not started by EFI (no /sys/firmware/efi)"}
	}
	text, err := root.ReadFile(secureBootFile, 16)
	if err != nil {
		return secureBoot{text: fmt.Sprintf("whether Secure Boot is on cannot be read: %s: %v", secureBootFile, err)}
	}
	on, err := parseSecureBoot(text)
	switch {
	case err != nil:
		return secureBoot{text: fmt.Sprintf("whether Secure Boot is on cannot be told: %s: %v", secureBootFile, err)}
	case on:
		return secureBoot{true, "Secure Boot is on (" + secureBootFile + ")"}
	}
	return secureBoot{text: "Secure Boot is off (" + secureBootFile + ")"}
}

func parseSecureBoot(variable []byte) (bool, error) {
	if len(variable) != 5 {
		return false, fmt.Errorf("%d bytes: want 5", len(variable))
	}
	switch variable[4] {
	case 0:
		return false, nil
	case 1:
		return true, nil
	}
	return false, fmt.Errorf("its value is %d: want 0 or 1", variable[4])
}
