"""Job files: reading and checking them."""
