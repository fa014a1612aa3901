"""CUDA graphs: a dense program is recorded once for its sizes, and replayed; see
docs/cuda_graphs.md.

A call goes through `program` (which parts of a graph are recorded), `graphed` (which recording
serves a call, when to make another), `recording` (inputs copied in, replay, what the call gets).
"""
