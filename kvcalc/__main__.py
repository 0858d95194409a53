"""The command and `python -m kvcalc`."""

import sys


def main() -> int:
    """Run the command line; Ctrl-C while its modules are still being read ends it as quietly as later."""
    try:
        from kvcalc.cli.app import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
