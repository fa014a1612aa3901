"""The benchmarks: ``python -m benchmarks [--quick] [--only NAME] [--json FILE]``, or
``make bench``.

Every figure is a ratio of two things measured in one process, interleaved; see docs/benchmarks.md
for the method.

- `first_call`: what the first call of a region costs, beside ``aot_function`` and
  ``torch.compile``.
- `steady`: what a compiled call costs beyond its dense graph.
- `memory`: what is kept for the backward, and the peak of a training step.
"""
