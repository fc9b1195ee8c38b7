#!/bin/sh
# Makes sure that server binaries of PostgreSQL 15 or newer are installed. The
# tests and `nightwarrant demo` run them privately; no system cluster is made.
set -eu
. "$(dirname "$0")/debian.sh"

minimum=15
why="The programs of a PostgreSQL server, $minimum or newer, are needed"

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

# without_cluster keeps Debian's packaging from making and starting a cluster.
without_cluster() {
	as_root mkdir -p /etc/postgresql-common/createcluster.d
	echo 'create_main_cluster = false' | as_root tee /etc/postgresql-common/createcluster.d/nightwarrant.conf >/dev/null
}

found && exit 0
can_install && without_cluster
provide postgresql
found || { echo "$why, and this system's package is older: install a newer one (https://www.postgresql.org/download), then try again." >&2; exit 78; }
