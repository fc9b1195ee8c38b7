package testbinary

import (
	"os"
	"os/exec"
	"testing"
)

// SoftHSM is the file of SoftHSM's library, a token in software, whose tools and openssl are installed with it.
// It skips t where one of them is missing, and fails it when CI=true.
func SoftHSM(t testing.TB) (library string) {
	t.Helper()
	for _, file := range []string{"/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so", "/usr/lib/aarch64-linux-gnu/softhsm/libsofthsm2.so"} {
		if _, err := os.Stat(file); err == nil {
			library = file
		}
	}
	missing := library == ""
	for _, tool := range []string{"softhsm2-util", "pkcs11-tool", "openssl"} {
		_, err := exec.LookPath(tool)
		missing = missing || err != nil
	}
	switch {
	case missing && os.Getenv("CI") == "true":
		t.Fatal("SoftHSM2, opensc and openssl are needed: scripts/ensure-softhsm.sh installs them")
	case missing:
		t.Skip("SoftHSM2, opensc or openssl is not installed")
	}
	return library
}
