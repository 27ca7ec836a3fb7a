"""`python -m pipeline` is the `lookahead` command."""

from pipeline.cli import main

if __name__ == "__main__":
    main()
