"""The commands. ``main`` is where they start; each is a module that is imported when it is run."""
