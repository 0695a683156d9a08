"""The fast lane: plain sends and pulls without a command object."""
