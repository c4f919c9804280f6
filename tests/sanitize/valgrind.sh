#!/bin/sh
# In place of the daemon (TENSORCXD=): the same under $VALGRIND, which looks for leaks, too.
here=$(dirname "$0")
exec $VALGRIND --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite "$here/../../build/bin/tensorcxd" "$@"
