"""Python state of one call: sources in, side effects out (docs/architecture.md)."""
