"""kvcalc, and python -m kvcalc."""


def main() -> int:
    """The command line, which Ctrl-C also ends quietly while it is still being imported."""
    try:
        from kvcalc.cli.app import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    raise SystemExit(main())
