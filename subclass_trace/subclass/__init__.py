"""The subclass layer: what a wrapper is made of, and how to take it apart and put it together."""
