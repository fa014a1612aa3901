"""Writing wrapper subclasses: declare the inner tensors, list the operations, choose a default for
the rest.

`WrapperTensor` is the base class (wrapper.py), docs/authoring.md the whole story. The groups of
operations are what the families of a class cover, and what ``@Cls.implements`` takes besides single
operations.
"""

from .fields import Outer  # what the outside of a wrapper looks like
from .rules import collectives, elementwise, factories, in_place, views  # groups of operations
from .wrapper import WrapperTensor  # declare a wrapper like a dataclass

__all__ = ["Outer", "WrapperTensor", "collectives", "elementwise", "factories", "in_place", "views"]
