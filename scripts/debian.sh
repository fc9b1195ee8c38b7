# For the ensure-*.sh beside it, which set why: what is needed, and for what.

# lacking PACKAGE…: says in one sentence what to install, and ends.
lacking() {
	echo "$why: install what is missing (Debian: apt-get install $*, as root), then try again." >&2
	exit 78
}

# as_root COMMAND…: runs it as root without ever asking for a password.
as_root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

# can_install: with Debian's tools, and as whoever calls.
can_install() { command -v apt-get >/dev/null 2>&1 && as_root true 2>/dev/null; }

# apt_get ARGUMENT…: what it said is told when it fails, its last line.
apt_get() {
	said=$(as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" 2>&1) && return
	printf '%s\n' "$said" | tail -n 1 >&2
	return 1
}

# provide PACKAGE…: installs Debian's packages, or lacking.
provide() {
	can_install || lacking "$@"
	echo "$why: installing $*"
	apt_get update || true # an outdated list may do
	apt_get install -y --no-install-recommends "$@" || lacking "$@"
}
