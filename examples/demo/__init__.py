"""The main job on real input: train a small language model with tensor-parallel and with FP8
weights.

Each model is trained twice from the same seed on the same batches, in eager and compiled by
`subclass_trace`, one step of each in turn. Run it with ``make demo``, or
``python -m examples.demo --help``.
"""
