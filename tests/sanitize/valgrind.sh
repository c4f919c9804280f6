#!/bin/sh
# In place of a daemon (TENSORCXD=): $BUILD's under valgrind. What it finds goes into $REPORTS, and the exit status says so.
exec valgrind -q --leak-check=full --errors-for-leak-kinds=definite --show-leak-kinds=definite --error-exitcode=99 --log-file="$REPORTS/%p" "$BUILD/bin/tensorcxd" "$@"
