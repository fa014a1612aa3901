"""Partition: a joint graph becomes a forward and a backward program and a list of what is saved
between them."""
