#!/bin/sh
# Makes sure that server binaries of PostgreSQL 15 or newer are installed. The
# tests and `nightwarrant demo` run them privately; no system cluster is made.
set -eu

minimum=15

# usable BIN: BIN/postgres is new enough and initdb stands beside it.
usable() {
	[ -x "$1/postgres" ] && [ -x "$1/initdb" ] || return 1
	major=$("$1/postgres" --version 2>/dev/null | sed -n 's/^postgres (PostgreSQL) \([0-9]\{1,4\}\)[^0-9].*/\1/p')
	[ "${major:-0}" -ge "$minimum" ]
}

found() {
	if postgres=$(command -v postgres); then
		usable "$(dirname "$(readlink -f "$postgres")")" && return 0
	fi
	for bin in /usr/lib/postgresql/*/bin; do
		usable "$bin" && return 0
	done
	return 1
}

refuse() {
	echo "PostgreSQL $minimum or newer server binaries are needed: install them ($1)" >&2
	exit 78
}

# as_root COMMAND…: runs it as root without ever asking for a password.
as_root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

# without_cluster keeps Debian's packaging from making and starting a cluster.
without_cluster() {
	as_root mkdir -p /etc/postgresql-common/createcluster.d
	echo 'create_main_cluster = false' | as_root tee /etc/postgresql-common/createcluster.d/nightwarrant.conf >/dev/null
}

found && exit 0
command -v apt-get >/dev/null || refuse "with your system's package manager"
as_root true 2>/dev/null || refuse "apt-get install postgresql, as root"

without_cluster
as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends postgresql
found || refuse "this system's package postgresql is older"
