"""The ``eager`` back end: the graph as straight-line Python. See `graph_code`."""

from .graph_code import compile_eager as compile_eager
