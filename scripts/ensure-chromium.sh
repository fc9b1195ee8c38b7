#!/bin/sh
# The pages are tested in a browser, which must not fetch one of its own.
set -eu
. "$(dirname "$0")/debian.sh"
why="Chromium is needed for the tests of the pages"

for name in chromium chromium-browser google-chrome; do
	command -v "$name" >/dev/null && exit 0
done
provide chromium fonts-dejavu-core
