"""The private parts of torch that tracejit calls; `torch_deferred.py` alone names others.

Each is looked up once. If a release of torch lacks one, `MISSING` names it, and jitted functions run eagerly with a
warning that says so: nothing else depends on them.
"""
from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Optional

import torch
from torch._subclasses.fake_impls import op_implementations_checks
from torch._subclasses.fake_tensor import (DataDependentOutputException, DynamicOutputShapeException, FakeTensor,
                                           FakeTensorMode, UnsupportedFakeTensorException)

from .errors import UnsupportedError
from .torch_deferred import converted, defer_imports

__all__ = ["FakeTensor", "FakeTensorMode", "NEEDS_DATA", "MISSING", "converted"]

NEEDS_DATA = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)
MISSING: list[str] = []


def _find(path: str) -> Any:
    """The attribute at a dotted path below `torch`, or a stand-in that is noted as missing."""
    found: Any = torch
    for part in path.split("."):
        found = getattr(found, part, None)
        if found is None:
            MISSING.append(f"torch.{path}")
            return lambda *args: None
    return found


unseen_by_function_modes: Callable = _find("_C.DisableTorchFunction")          # a context
function_modes: Callable[[], int] = _find("_C._len_torch_function_stack")
function_modes_see: Callable[[], bool] = _find("_C._is_torch_function_mode_enabled")       # there is one, and it is not disabled
dispatch_modes: Callable[[], int] = _find("_C._len_torch_dispatch_stack")
functorch_level: Callable[[], Any] = _find("_C._functorch.peek_interpreter_stack")
autocast_is_on: Callable[[], bool] = _find("_C._is_any_autocast_enabled")
set_grad_mode: Callable = _find("_C._set_grad_enabled")                        # what torch.no_grad() calls
tensor_set: Callable = _find("_C.TensorBase.set_")
conj_view: Callable = _find("_conj")
neg_view: Callable = _find("_neg_view")
is_zero_tensor: Callable[[torch.Tensor], bool] = _find("_is_zerotensor")
storage_use_count: Callable[[int], int] = _find("_C._storage_Use_Count")       # of a storage's address
below_dispatch_modes: Callable = _find("_C._DisableTorchDispatch")             # a context
run_backward: Callable = _find("autograd.graph._engine_run_backward")          # what torch.autograd.grad calls
set_versions: Callable = _find("_C._autograd._unsafe_set_version_counter")     # (tensors, versions)
graph_is_kept: Callable[[], bool] = _find("_C._autograd._get_current_graph_task_keep_graph")     # asked in a backward pass
node_of_its_own: Callable[[torch.Tensor], torch.Tensor] = _find("ops.aten.lift.default")         # the same tensor, one node on
_creation_meta: Callable = _find("_C._autograd._get_creation_meta")            # of a view: which writes to it autograd refuses
_creation_metas: Any = _find("_C._autograd.CreationMeta")
_graph_task: Callable[[], int] = _find("_C._current_graph_task_id")               # -1 outside of backward passes
_top_hooks: Callable = _find("_C._autograd._top_saved_tensors_default_hooks")
_is_wrapped: Callable = _find("_C._functorch.is_functorch_wrapped_tensor")
_is_functional: Callable = _find("_is_functional_tensor")
_has_kernel: Callable = _find("_C._dispatch_has_kernel_for_dispatch_key")
_fakes_decompose: Callable[[torch._ops.OpOverload], bool] = _find("_subclasses.fake_tensor.torch_decomp_decompositions")


# (module, class, method): what wraps a module and runs collectives of its own around it, which no trace shows.
DISTRIBUTED_WRAPPERS = (("torch.nn.parallel.distributed", "DistributedDataParallel", "_pre_forward"),
                        ("torch.distributed.fsdp._fully_shard._fsdp_state", "FSDPState", "_root_pre_forward"))


def bare_apply(function: type[torch.autograd.Function]) -> Callable:
    """`function.apply` without its looks for functorch's transforms: under one of them no program runs."""
    return getattr(super(torch.autograd.Function, function), "apply", function.apply)


def creation_is_plain(view: torch.Tensor) -> bool:
    """Is a view made by a call that autograd lets writes go through?"""
    return _creation_meta(view) == _creation_metas.DEFAULT


def saved_tensor_hooks() -> Any:
    """The innermost (pack, unpack) pair of `torch.autograd.graph.saved_tensors_hooks`, or None."""
    return _top_hooks(False)


def runs_again() -> bool:
    """Is this within a function that checkpoint runs a second time, in a backward pass?"""
    return saved_tensor_hooks() is not None and _graph_task() != -1


def _find_optional(path: str) -> Any:
    """The attribute at a dotted path below `torch`, or None: there is a slower public way."""
    found: Any = torch
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def without_frame(overload: torch._ops.OpOverload) -> Callable:
    """What an overload calls, a function in C, where it has one."""
    return getattr(overload, "_op", overload) if type(overload) is torch._ops.OpOverload else overload


empty_strided: Optional[Callable] = _find_optional("_C._dynamo.guards._empty_strided_cpu")       # (sizes, strides, dtype)
# The address of a C function `void *(PyObject *)` that returns a tensor's data_ptr().
tensor_data_function: Optional[int] = _find_optional("_C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr")


@functools.lru_cache(None)
def is_composite(overload: torch._ops.OpOverload) -> bool:
    """Made of other ops for every backend: in inference mode nobody has decomposed it before we see it."""
    name = overload.name()
    return _has_kernel(name, "CompositeImplicitAutograd") and not _has_kernel(name, "CPU")     # silu_backward has both


@functools.lru_cache(None)
def has_fake_rule(overload: torch._ops.OpOverload) -> bool:
    """Do fakes treat it in a way of their own, other than to run it on tensors without data?"""
    return any(check(overload) for check, _ in op_implementations_checks)


@functools.lru_cache(None)
def decomposition_on_fakes(overload: torch._ops.OpOverload) -> Optional[Callable]:
    """The function of torch's own, in Python, that fakes run in the operation's place; None where they do something else."""
    from torch._decomp import decomposition_table, meta_table
    if has_fake_rule(overload) or overload in meta_table or overload not in decomposition_table or not _fakes_decompose(overload):
        return None
    return decomposition_table[overload]


def taken_by_fakes(overload: torch._ops.OpOverload) -> Callable:
    """What to call with fakes, in their mode: the overload, or what they would run for it outside of their mode, where each call
    of torch's asks whether a fake is a `DTensor`, and imports for a tenth of a second what knows."""
    if overload is torch.ops.aten.native_layer_norm.default and has_fake_rule(overload):
        from torch._decomp import decomposition_table
        return decomposition_table.get(overload, overload)
    return overload


def fake_mode(open_sizes: bool = False) -> FakeTensorMode:
    """open_sizes: fakes may have extents for sizes, which what the mode remembers of calls does not tell apart."""
    defer_imports()
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    mode.cache_enabled = mode.cache_enabled and not open_sizes
    return mode


def plain_fake(mode: FakeTensorMode, real: torch.Tensor, layout: Optional[tuple] = None) -> Optional[torch.Tensor]:
    """What `mode.from_tensor` makes of a tensor that is no view and the first one seen over its storage, at a fifth of its
    time and without the cycles of closures that it leaves to the collector; None for others. `.grad` is not faked with it.

    layout: (shape, strides) of the fake, where they are not the tensor's."""
    storage = real.untyped_storage()
    if (real._is_view() or not real.is_leaf or real.storage_offset() or not storage.size() or real.is_conj() or real.is_neg()
            or real.is_inference() or real.requires_grad and real.grad_dtype != real.dtype or hasattr(real, "_is_buffer")
            or _is_wrapped(real) or _is_functional(real)):
        return None
    memo = mode.fake_tensor_converter.meta_converter
    number = memo.describer.get_storage_id(storage)
    if number in memo.storage_memo or memo.describer.get_tensor_id(real) in memo.tensor_memo:
        return None
    fake = new_fake(mode, *(layout or (real.shape, real.stride())), real.dtype, real.device, real.requires_grad)
    memo.storage_memo[number] = fake.untyped_storage()
    mode.fake_tensor_converter.set_tensor_memo(real, fake)
    if isinstance(real, torch.nn.Parameter):
        fake._is_param = True
    return fake


def has_open_sizes(flat: Iterable[Any]) -> bool:
    """Is one of these a `SymInt`, or a fake (or a tensor without data) of which a size, a stride or the offset is one?"""
    return any(a._has_symbolic_sizes_strides if isinstance(a, torch.Tensor) else isinstance(a, torch.SymInt) for a in flat)


@contextmanager
def kernels_for_open_sizes(flat: Iterable[Any]) -> Iterator[None]:
    """A context for a call on these, which may have open sizes: such go to torch's functions in Python, as those in C refuse them.
    UnsupportedError where there is none that takes them."""
    if not has_open_sizes(flat):
        yield
        return
    from torch._dispatch.python import enable_python_dispatcher
    try:
        with enable_python_dispatcher():
            yield
    except (RuntimeError, TypeError) as error:                 # as functions in C, and those that take numbers alone, refuse a `SymInt`
        raise UnsupportedError(f"sizes that are open: {error}") from error


def new_fake(mode: FakeTensorMode, shape: tuple, stride: tuple, dtype: torch.dtype, device: torch.device,
             requires_grad: bool = False) -> torch.Tensor:
    """A fake in a storage of its own."""
    with below_dispatch_modes():
        bare = torch.empty_strided(shape, stride, dtype=dtype, device="meta", requires_grad=requires_grad)
        return FakeTensor(mode, bare, device)


def bare_tensor(fake: torch.Tensor) -> torch.Tensor:
    """A tensor without data, at the same place of the storage of a fake."""
    with below_dispatch_modes():
        bare = torch.empty(0, dtype=fake.dtype, device="meta")
        return tensor_set(bare, fake.untyped_storage(), fake.storage_offset(), fake.shape, fake.stride())


def fake_over(mode: FakeTensorMode, bare: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A fake in the storage of a tensor without data."""
    with below_dispatch_modes():
        return FakeTensor(mode, bare, device)


# ------------------------------------------------------------ for calls in C; None: calls stay in Python

keyset_of: Optional[Callable] = _find_optional("_C._dispatch_keys")            # of a tensor; `.raw_repr()` is its bits
LIBRARIES = Path(torch.__file__).parent / "lib"
DISPATCH_KEYS = "_ZN3c104impl26raw_local_dispatch_key_setE"                    # of this thread: included, excluded
FUNCTIONS = {                                                                  # C++ functions that take and return plain words
    "grad_mode": "_ZN3c108GradMode10is_enabledEv",
    "inference_mode": "_ZN3c1013InferenceMode10is_enabledEv",
    "requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv",
    "is_leaf": "_ZNK2at10TensorBase7is_leafEv",
    "context": "_ZN2at13globalContextEv",
    "deterministic": "_ZNK2at7Context23deterministicAlgorithmsEv",
    "default_dtype": "_ZN3c1031get_default_dtype_as_scalartypeEv",
    "autocast_dtype": "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE",
    "function_modes": "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "saved_hooks": "_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv",
}


@functools.lru_cache(None)
def exported(symbol: str) -> Optional[int]:
    """The address of a C++ name in torch's libraries, or None."""
    for name in ("libtorch_cpu.so", "libc10.so"):
        try:
            return ctypes.cast(ctypes.CDLL(str(LIBRARIES / name))[symbol], ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None
