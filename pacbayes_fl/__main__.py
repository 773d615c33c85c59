"""`python -m pacbayes_fl`: the command line, for launchers that take a module."""

from __future__ import annotations

import sys

from pacbayes_fl.cli import main

if __name__ == "__main__":
    sys.exit(main())
