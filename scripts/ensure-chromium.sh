#!/bin/sh
# Makes sure that Debian's Chromium is installed; the pages are tested in it.
# Where it is missing and cannot be installed, those tests say so and skip, but in CI.
set -eu

for name in chromium chromium-browser google-chrome; do
	command -v "$name" >/dev/null && exit 0
done

refuse() {
	echo "Chromium is needed for the tests of the pages: install it ($1)" >&2
	[ "${CI:-}" = true ] && exit 78
	exit 0
}

# as_root COMMAND…: runs it as root without ever asking for a password.
as_root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

command -v apt-get >/dev/null || refuse "with your system's package manager"
as_root true 2>/dev/null || refuse "apt-get install chromium, as root"
as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core || refuse "apt-get install chromium"
