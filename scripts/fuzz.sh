#!/bin/bash
# Runs each fuzz target of the module for the given time, one after the other.
set -euo pipefail
time=${1:-20s}
grep -rlE '^func Fuzz' --include='*_test.go' . | sort | while read -r file; do
	for target in $(grep -oE '^func (Fuzz[A-Za-z0-9]+)' "$file" | awk '{print $2}'); do
		echo "== $target in $(dirname "$file")"
		go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$time"
	done
done
