#!/bin/sh
# Looks at a binary that is to be shipped: built with the validated snapshot of the Go Cryptographic Module, in FIPS mode by default, without cgo, paths or the synthetic profile.
set -eu
said=$("${GO:-go}" version -m "$1")
must() { printf '%s\n' "$said" | grep -Eq -e "$1" || { echo "release: $2" >&2; exit 1; }; }
never() { if printf '%s\n' "$said" | grep -Eq -e "$1"; then echo "release: $2" >&2; exit 1; fi; }
must 'GOFIPS140=v1\.0\.0-c2097c7c$' "it was not built with GOFIPS140=v1.0.0"
must 'DefaultGODEBUG=.*fips140=on' "it is not in FIPS mode by default"
must 'CGO_ENABLED=0$' "it was built with cgo"
must '-trimpath=true$' "it holds paths of who built it"
never 'nightwarrant_synthetic' "it takes a software token for a real one"
