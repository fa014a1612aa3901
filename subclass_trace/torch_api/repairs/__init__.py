"""Faults of torch that a trace would meet and eager mode does not, a file for each family: what
goes wrong, and the repair. `table` says of each which versions have it, and where it is reported.
"""
