"""What all commands for operators share: groups, output, contexts, the connection, mistakes."""
