#!/bin/bash
# Brings a fresh stack of one binary up and has that very binary audit it: scripts/tripwire.sh bin/nightwarrant
# Fails when something does not hold. Nothing is left of the stack.
set -euo pipefail
binary=$(realpath "$1")
dir=$(mktemp -d /var/tmp/nightwarrant-tripwire-XXXXXX)
chmod 711 "$dir" # PostgreSQL runs as another account
"$binary" dev --dir "$dir/stack" >"$dir/dev.log" 2>&1 &
stack=$!
end() {
	kill "$stack" 2>/dev/null || true
	wait "$stack" || true
	rm -rf "$dir"
}
trap end EXIT
for _ in $(seq 240); do
	grep -q 'Stop with Ctrl-C' "$dir/dev.log" && break
	kill -0 "$stack" 2>/dev/null || { cat "$dir/dev.log" >&2; exit 1; }
	sleep 0.5
done
"$binary" tripwire --config "$dir/stack/tripwire.yaml" --close-gate
