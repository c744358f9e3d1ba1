"""Entry point of the frozen executable."""

import sys

from koord.cli import main

if __name__ == "__main__":
    sys.exit(main())
