#!/bin/sh
# Installs libfaketime where that can be done without asking anybody. Without it
# `nightwarrant bench closing` leaves out the fault that steps PostgreSQL's clock, and says so.
set -eu

as_root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

for lib in /usr/lib/*/faketime/libfaketime.so.1; do
	[ -e "$lib" ] && exit 0
done
command -v apt-get >/dev/null || exit 0
as_root true 2>/dev/null || exit 0
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends faketime || echo "faketime could not be installed" >&2
