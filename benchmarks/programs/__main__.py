"""`python -m benchmarks.programs NAME`: run one program."""

import sys

from benchmarks.programs.running import main

if __name__ == "__main__":
    sys.exit(main())
