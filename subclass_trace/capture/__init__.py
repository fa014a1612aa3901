"""Capture: one run of the user function becomes a functional dense joint graph. See
docs/architecture.md."""
