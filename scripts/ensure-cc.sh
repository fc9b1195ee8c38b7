#!/bin/sh
# Tests run with -race, which needs a C compiler and the C library's headers.
set -eu
. "$(dirname "$0")/debian.sh"
why="A C compiler is needed for -race and for the key host"
compiles() { printf '#include <stdlib.h>\nint main(void) { return 0; }\n' | ${CC:-gcc} -x c -o /dev/null - 2>/dev/null; }

compiles || provide gcc libc6-dev
compiles || lacking gcc libc6-dev
