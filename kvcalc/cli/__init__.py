"""The command line: typer, one thin module a group of verbs."""
