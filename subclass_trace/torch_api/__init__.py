"""The only door to torch's private API. Everything else in this package uses public torch, or a
name from here.

`tests/test_torch_door.py` lists these symbols and checks them on the installed torch. Supported:
torch 2.11 to 2.15. Anything that pulls in Dynamo or inductor is imported inside a function, so that
``import subclass_trace`` stays light. All public names of the modules below are names of this
package.
"""

from __future__ import annotations

from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch.fx.experimental.proxy_tensor import disable_autocast_cache as disable_autocast_cache
from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv
from torch.overrides import TorchFunctionMode as TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import (
    autograd_would_have_decomposed as autograd_would_have_decomposed,
)
from torch.utils._pytree import tree_map_only as tree_map_only

from .assertions import *
from .attention import *
from .autograd import *
from .collectives import *
from .compiled_inside import *
from .compiling import *
from .dtensor_modes import *
from .dynamo import *
from .dynamo_faults import *
from .exact_numbers import *
from .expressions import *
from .fake_results import *
from .fakes import *
from .flag_rows import *
from .flags import *
from .float_arguments import *
from .graphs import *
from .guards import *
from .hooks import *
from .inductor import *
from .kinds import *
from .lines import *
from .modes import *
from .numbers import *
from .operators import *
from .repairs.composites import *
from .repairs.fake_kernels import *
from .repairs.fast_paths import *
from .repairs.strided_shards import *
from .sharding import *
from .structured import *
from .symbols import *
from .texts import *
from .this_thread import *
from .versions import untested as untested
from .wrappers import *

# torch's own pytrees, for the arguments of higher order operators
__all__ = ["done_work", "pytree"]
