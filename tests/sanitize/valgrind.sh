#!/bin/sh
# In place of the daemon (TENSORCXD=): the same under $VALGRIND.
here=$(dirname "$0")
exec $VALGRIND "$here/../../build/bin/tensorcxd" "$@"
