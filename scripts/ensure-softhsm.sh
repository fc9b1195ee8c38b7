#!/bin/sh
# A software token and its tools, with which the key host is tested.
set -eu
. "$(dirname "$0")/debian.sh"
why="A software token and its tools are needed for the tests of the key host"
have() { command -v softhsm2-util >/dev/null && command -v pkcs11-tool >/dev/null && command -v openssl >/dev/null; }

have || provide softhsm2 opensc openssl
