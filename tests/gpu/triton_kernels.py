"""A kernel for `test_on_a_gpu`; imported only where Triton is."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def double(source, target, count, BLOCK: tl.constexpr):
    """target = 2 * source"""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, 2 * tl.load(source + at, mask=at < count), mask=at < count)
