"""Inspecting, verifying and repairing a store directory."""
