"""`python -m esker` is the `esker` command."""

from esker.cli import main

main()
