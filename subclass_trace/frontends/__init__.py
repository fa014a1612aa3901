"""Front ends: what users call."""
