"""`python -m litefuse` is the command `litefuse`."""

from litefuse.cli import main

main()
