"""The commands: ``main`` has the entry points; a subcommand is imported when it runs."""
