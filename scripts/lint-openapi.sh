#!/bin/bash
# Lints the description of the API with Redocly's linter, whose version is locked here and comes from npm's registry. It asks nobody else.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/ensure-node.sh
export PATH="$PWD/build/node/bin:$PATH" REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true
cd scripts/openapi
npm ci --ignore-scripts --no-audit --no-fund --silent
npx --no-install redocly lint --config redocly.yaml ../../docs/reference/openapi.json 2>&1 | grep -v '[║╔╚]' >&2
