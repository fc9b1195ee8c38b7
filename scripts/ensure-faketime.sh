#!/bin/sh
# Without libfaketime `nightwarrant bench closing` leaves out the fault that steps PostgreSQL's clock, and says so.
# Nobody is kept from the other faults.
set -eu
. "$(dirname "$0")/debian.sh"
why="libfaketime is needed to step PostgreSQL's clock"

for lib in /usr/lib/*/faketime/libfaketime.so.1; do
	[ -e "$lib" ] && exit 0
done
(provide faketime) || true
