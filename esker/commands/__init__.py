"""One module for each family of commands; `esker.cli` puts them together."""
