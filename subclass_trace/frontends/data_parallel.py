"""A region of what a `DistributedDataParallel` wraps: what DDP does in Python, it does in each call, around the region.

Its forward broadcasts buffers, calls the module, and tells its reducer that the gradients of this call are to be summed
over the ranks. Only the call of the module is traced; the reducer's hooks sit on the parameters, where a region's backward
delivers gradients like eager's.
"""

from __future__ import annotations

import copy
from typing import Any

from torch.compiler import is_dynamo_compiling

from .. import _torch
from .._torch.dynamo import never_compiled
from ..options import Options
from .compile import Region


class DataParallelRegion(Region):
    """The region of the module inside; called, it runs the `DistributedDataParallel` around it.

    Whatever else is asked of it (``parameters()``, ``no_sync()``, ``module``) is the `DistributedDataParallel`'s own.
    """

    def __init__(self, parallel: Any, options: Options, *, keep_joint: bool = False) -> None:
        super().__init__(parallel.module, options, keep_joint=keep_joint)
        self.parallel = parallel

    @never_compiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the `DistributedDataParallel`, with the region in the place of its module."""
        if is_dynamo_compiling():
            return self.parallel(*args, **kwargs)
        with _torch.module_inside_replaced(self.parallel, super().__call__):
            return self.parallel(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the `DistributedDataParallel`'s own."""
        if name == "parallel" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.parallel, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the `DistributedDataParallel` and the options."""
        return type(self), (self.parallel, self.options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Region:
        """A region for a copy of the `DistributedDataParallel`, without specializations."""
        return type(self)(copy.deepcopy(self.parallel, memo), self.options)
