"""`codedfedl`, also as `python -m codedfedl`; Ctrl-C during the imports exits cleanly too."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from codedfedl.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
