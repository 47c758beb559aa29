"""A simulated GPU: tensors that say ``cuda:0``, obey CUDA's rules about devices and hold real numbers on the CPU.

Python sees the device ``cuda:0``; C++ sees ``meta``, of which it asks nothing, where a CUDA device without a driver
ends a backward pass. Kernels are those of the CPU, so that values can be compared bit for bit. It cannot see what a
kernel rounds, CUDA's random numbers, real memory, streams, or autocast.

``with gpu:`` applies to the present thread and to the one that makes batches ahead. As a program it is a worker process
on such a GPU.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock

import torch
from bench.engine import inputs, worker
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

CUDA, SEEN, CPU = torch.device("cuda", 0), torch.device("meta"), torch.device("cpu")
ASSERT = "CUDA error: device-side assert triggered"

WAITS = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount",
    "equal", "_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_qr", "histc",
}  # fmt: skip
"""Operators for whose result, or the size of it, the host waits."""


class GpuTensor(Tensor):
    """A tensor on the simulated GPU."""

    held: Tensor
    gpu: Gpu

    @staticmethod
    def __new__(cls, held: Tensor, gpu: Gpu) -> GpuTensor:
        made: GpuTensor = Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=SEEN,
        )  # fmt: skip
        made.held, made.gpu = held, gpu
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        gpu = next(leaf.gpu for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, GpuTensor))
        return gpu.run(func, args, kwargs or {})

    def get_device(self) -> int:
        """Number of the GPU."""
        return 0

    def numpy(self, **options: object) -> Any:
        """Raise what a tensor of CUDA raises."""
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy  # type: ignore[assignment]

    def record_stream(self, stream: object) -> None:
        """Do nothing: memory is not used again."""

    def tolist(self) -> Any:
        """Numbers of the tensor, for which the host waits."""
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.cpu().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> GpuTensor:
        copy: Any
        memo[id(self)] = copy = self.detach().clone().requires_grad_(self.requires_grad)
        return copy  # type: ignore[no-any-return]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"GpuTensor({tuple(self.shape)}, {self.dtype})"


def _seen(device: Any) -> Any:
    return SEEN if isinstance(device, str | torch.device) and str(device).partition(":")[0] == "cuda" else device


class _Names(TorchFunctionMode):
    """Replaces the device ``cuda`` by what C++ sees."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            return func(*args, **(kwargs or {}))  # a name alone
        args, kwargs = tuple(map(_seen, args)), {name: _seen(value) for name, value in (kwargs or {}).items()}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == SEEN:
            return func(*args, **{**kwargs, "device": CPU}).to(SEEN)
        if func is Tensor.new_tensor and isinstance(args[0], GpuTensor) and "device" not in kwargs:
            return torch.tensor(*args[1:], **({"dtype": args[0].dtype} | kwargs)).to(SEEN)
        return args[0] if func is Tensor.pin_memory else func(*args, **kwargs)


class _Rules(TorchDispatchMode):
    """Sends every operator to the GPU, which leaves those of the CPU alone."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.gpu.run(func, args, kwargs or {})


class Gpu:
    """The simulated GPU, of which there is one: functions of torch are replaced, by a ``setattr`` that may be undone.

    An index beyond the end of a tensor breaks it, as CUDA does: from then on every operator fails.

    Attributes:
        waits: How often the host waited for the GPU, by reason; copies that block are among them.
        launches: Number of operators that compute.
        fails: Function ``(operator, arguments, to_gpu) -> bool`` that says where memory runs out, or None.
        freed: How often the cache was emptied.
        room: Bytes that are free, and all.
        share: Share of the memory that this process may use.
    """

    def __init__(self, patch: Callable[[Any, str, Any], None] = setattr) -> None:
        self.waits: collections.Counter[str] = collections.Counter()
        self.fails: Callable[[str, Any, bool], Any] | None = None
        self.launches, self.freed, self.broken = 0, 0, False
        self.room, self.share = (80 << 30, 80 << 30), 1.0
        self._entered: list[contextlib.ExitStack] = []
        quiet = {
            "_lazy_init": None, "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0,
            "reset_peak_memory_stats": None, "max_memory_allocated": 0, "memory_allocated": 0,
            "get_device_name": "Simulated GPU",
            "get_device_capability": (9, 0),
            "manual_seed": None, "manual_seed_all": None, "is_current_stream_capturing": False,
        }  # fmt: skip
        for name, value in quiet.items():
            patch(torch.cuda, name, lambda *given, value=value: value)
        for name in ("Event", "Stream", "stream", "current_stream"):
            patch(torch.cuda, name, lambda *given: MagicMock())  # all is done in turn
        patch(torch.cuda, "synchronize", lambda *given: self.waits.update(["synchronize"]))
        patch(torch.cuda, "empty_cache", self._free)
        patch(torch.cuda, "mem_get_info", lambda *given: self.room)
        patch(torch.cuda, "set_per_process_memory_fraction", self._limit)
        patch(torch.cuda, "get_rng_state", lambda *given: torch.get_rng_state())
        patch(torch.cuda, "set_rng_state", lambda state, *given: torch.set_rng_state(state))
        for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
            if hasattr(torch.optim.Optimizer, name):
                patch(torch.optim.Optimizer, name, lambda self: None)
        patch(inputs, "ThreadPoolExecutor", self._threads)

    def _free(self) -> None:
        self.freed += 1

    def _limit(self, share: float, *given: object) -> None:
        self.share = share

    def _threads(self, count: int) -> ThreadPoolExecutor:
        def begin() -> None:
            for mode in self._modes():
                mode.__enter__()

        return ThreadPoolExecutor(count, initializer=begin)

    def _modes(self) -> tuple[_Names, _Rules]:
        return _Names(), _Rules(self)

    def __enter__(self) -> Gpu:
        stack = contextlib.ExitStack()
        swapped = torch.__future__.get_swap_module_params_on_conversion()
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swapped)
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        for mode in self._modes():
            stack.enter_context(mode)
        self._entered.append(stack)
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)

    def run(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Do an operator as CUDA would, on the numbers that the tensors hold."""
        name = func._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, GpuTensor)]
        asked = kwargs.get("device")
        to_gpu = bool(ours) if asked is None else _seen(asked) == SEEN
        if not ours and not to_gpu:
            return func(*args, **kwargs)
        if self.broken:
            raise RuntimeError(ASSERT)
        if self.fails is not None and self.fails(name, args, to_gpu):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        self._obey(name, args, kwargs, tensors, to_gpu)
        self.launches += not (func.is_view or name.startswith(("empty", "detach", "new_empty")))
        if asked is not None:
            kwargs = {**kwargs, "device": CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        held_args, held_kwargs = tree_map_only(GpuTensor, lambda tensor: tensor.held, (args, kwargs))
        try:
            found = func(*held_args, **held_kwargs)
        except IndexError:
            self.broken = True
            raise RuntimeError(ASSERT) from None
        if not to_gpu:
            return found
        made = tree_map_only(Tensor, lambda tensor: GpuTensor(tensor, self), found)
        return return_and_correct_aliasing(func, args, kwargs, made)

    def _obey(self, name: str, args: Any, kwargs: Mapping[str, Any], tensors: list[Tensor], to_gpu: bool) -> None:
        """Raise what CUDA raises when devices are mixed, and count what the host waits for."""
        others = [tensor for tensor in tensors if not isinstance(tensor, GpuTensor)]
        generator = kwargs.get("generator")
        if to_gpu and generator is not None and generator.device.type != "cuda":
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        if name in ("_to_copy", "copy_"):
            crosses = len(others) == 1 if name == "copy_" else bool(others) == to_gpu
            blocking = not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
            if crosses and blocking:
                from_cpu = not isinstance(args[1 if name == "copy_" else 0], GpuTensor)
                self.waits["copy to the GPU" if from_cpu else "copy from the GPU"] += 1
            return
        if name in {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}:
            indices = [index for index in args[1] if index is not None]
            others = [tensor for tensor in (args[0], *args[2:3]) if not isinstance(tensor, GpuTensor)]
            if not isinstance(args[0], GpuTensor):
                raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
            self.waits.update("copy to the GPU" for index in indices if not isinstance(index, GpuTensor))
            filled = len(args) > 2 and args[2].numel() == 1 and len(indices) == 1
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices) and not filled:
                self.waits["size of a mask"] += 1
        if any(tensor.dim() for tensor in others):
            raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu! ({name})")
        if name in WAITS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
            self.waits[name] += 1


if __name__ == "__main__":
    with Gpu():
        worker.main()
