"""`python -m pacbayes_fl` is the command `pacbayes-fl`."""

from __future__ import annotations

import sys

from pacbayes_fl.cli import main

if __name__ == "__main__":
    sys.exit(main())
