#!/bin/sh
# Tests run with -race, which needs a C compiler. Installs the system's package when there is none.
set -eu
command -v "${CC:-cc}" >/dev/null 2>&1 && exit 0
command -v gcc >/dev/null 2>&1 && exit 0
as_root=""
if [ "$(id -u)" -ne 0 ]; then
	as_root="sudo -n"
	sudo -n true 2>/dev/null || { echo "A C compiler is needed for -race: install gcc and libc6-dev, then try again." >&2; exit 78; }
fi
command -v apt-get >/dev/null 2>&1 || { echo "A C compiler is needed for -race: install gcc, then try again." >&2; exit 78; }
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends gcc libc6-dev
