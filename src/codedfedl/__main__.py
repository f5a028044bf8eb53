"""`python -m codedfedl` is `codedfedl`."""

from codedfedl.cli import main

if __name__ == "__main__":
    main()
