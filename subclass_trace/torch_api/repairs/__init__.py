"""Faults of torch that a trace would meet and eager mode does not, a file for each family: what
goes wrong, and the repair.

A repair says in its docstring what torch does; its test compares a trace with eager mode, so a
repair that a newer torch makes superfluous is found by taking out what uses it (most are entered in
`capture/session.py`) and running the tests again.
"""
