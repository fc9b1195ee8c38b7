#!/bin/bash
# Runs every planted bug and prints how many were caught. A bug that is not caught fails.
set -uo pipefail
export NIGHTWARRANT_MUTANTS=1 # those in Go, too
out=$(go test ./test/... ./authority ./scheduler ./guards/... -run 'Planted' -count=1 -v -timeout 10m 2>&1)
status=$?
caught=$(grep -cE '^ *--- PASS: Test[A-Za-z]*Planted[A-Za-z]*/' <<<"$out")
missed=$(grep -cE '^ *--- FAIL: Test[A-Za-z]*Planted[A-Za-z]*/' <<<"$out")
grep -E '^ *--- (PASS|FAIL): Test[A-Za-z]*Planted[A-Za-z]*/' <<<"$out"
if [ "$status" -ne 0 ] || [ "$missed" -ne 0 ] || [ "$caught" -eq 0 ]; then
	tail -40 <<<"$out"
	echo "$caught of $((caught + missed)) caught"
	exit 1
fi
echo "$caught of $caught caught"
