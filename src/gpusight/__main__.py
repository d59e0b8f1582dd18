"""`python -m gpusight`."""

import sys

from gpusight.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
