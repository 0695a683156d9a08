"""Topics and subscription groups, and how they are saved."""
