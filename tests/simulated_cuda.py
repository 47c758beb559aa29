"""A simulated GPU: tensors that say ``cuda:0``, obey CUDA's rules about devices and hold real numbers on the CPU.

Python sees the device ``cuda:0``; C++ sees ``meta``, of which it asks nothing, where a CUDA device without a driver
ends a backward pass. Kernels are those of the CPU, so that values can be compared bit for bit. It cannot see what a
kernel rounds, CUDA's random numbers, real memory, streams, or autocast.

``with gpu:`` applies to the present thread and to the one that makes batches ahead.
"""

import collections
import contextlib
from concurrent.futures import ThreadPoolExecutor

import torch
from bench.engine import inputs
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
CUDA, SEEN, CPU = torch.device("cuda", 0), torch.device("meta"), torch.device("cpu")
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."

WAITS = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount",
    "equal", "_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_qr", "histc",
}  # fmt: skip
"""Operators for whose result, or the size of it, the host waits."""

TAKES_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class GpuTensor(torch.Tensor):
    """A tensor on the simulated GPU."""

    @staticmethod
    def __new__(cls, held, gpu):
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=SEEN,
        )  # fmt: skip
        made.held, made.gpu = held, gpu
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        gpu = next(leaf.gpu for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, GpuTensor))
        return gpu.run(func, args, kwargs or {})

    def get_device(self):
        return 0

    def numpy(self, **options):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def tolist(self):
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol):
        return self.cpu().__reduce_ex__(protocol)

    def __deepcopy__(self, memo):
        memo[id(self)] = copy = self.detach().clone().requires_grad_(self.requires_grad)
        return copy

    def __repr__(self):
        return f"GpuTensor({tuple(self.shape)}, {self.dtype})"


def _seen(device):
    return SEEN if isinstance(device, str | torch.device) and str(device).partition(":")[0] == "cuda" else device


class _Names(TorchFunctionMode):
    """Replaces the device ``cuda`` by what C++ sees."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        args, kwargs = tuple(map(_seen, args)), {name: _seen(value) for name, value in (kwargs or {}).items()}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") == SEEN:
            return func(*args, **{**kwargs, "device": CPU}).to(SEEN)
        if func is torch.Tensor.new_tensor and isinstance(args[0], GpuTensor) and "device" not in kwargs:
            return torch.tensor(*args[1:], **({"dtype": args[0].dtype} | kwargs)).to(SEEN)
        if func is torch.Tensor.pin_memory:
            return args[0]
        return func(*args, **kwargs)


class _Rules(TorchDispatchMode):
    """Sends every operator to the GPU, which leaves those of the CPU alone."""

    def __init__(self, gpu):
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.gpu.run(func, args, kwargs or {})


class Gpu:
    """The simulated GPU; made with a ``MonkeyPatch``, which takes it away again.

    Attributes:
        waits: How often the host waited for the GPU, by reason; copies that block are among them.
        launches: Number of operators that compute.
        fails: Function ``(operator, arguments, to_gpu) -> bool`` that says where memory runs out, or None.
        freed: How often the cache was emptied.
        room: Bytes that are free, and all.
        share: Share of the memory that this process may use.
    """

    def __init__(self, patch):
        self.waits, self.launches, self.fails, self.freed = collections.Counter(), 0, None, 0
        self.room, self.share, self._entered = (80 << 30, 80 << 30), 1.0, []
        quiet = {
            "_lazy_init": None, "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0,
            "reset_peak_memory_stats": None, "max_memory_allocated": 0, "get_device_name": "Simulated GPU",
            "get_device_capability": (9, 0),
            "manual_seed": None, "manual_seed_all": None, "is_current_stream_capturing": False,
        }  # fmt: skip
        for name, value in quiet.items():
            patch.setattr(torch.cuda, name, lambda *given, value=value: value)
        patch.setattr(torch.cuda, "synchronize", lambda *given: self.waits.update(["synchronize"]))
        patch.setattr(torch.cuda, "empty_cache", self._free)
        patch.setattr(torch.cuda, "mem_get_info", lambda *given: self.room)
        patch.setattr(
            torch.cuda, "set_per_process_memory_fraction", lambda share, *given: vars(self).update(share=share)
        )
        patch.setattr(torch.cuda, "get_rng_state", lambda *given: torch.get_rng_state())
        patch.setattr(torch.cuda, "set_rng_state", lambda state, *given: torch.set_rng_state(state))
        for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
            patch.setattr(torch.optim.Optimizer, name, lambda self: None, raising=False)
        patch.setattr(inputs, "ThreadPoolExecutor", self._threads)

    def _free(self):
        self.freed += 1

    def _limit(self, share, *given):
        self.share = share

    def _threads(self, count):
        return ThreadPoolExecutor(count, initializer=lambda: [mode.__enter__() for mode in self._modes()])

    def _modes(self):
        return _Names(), _Rules(self)

    def __enter__(self):
        stack = contextlib.ExitStack()
        swapped = torch.__future__.get_swap_module_params_on_conversion()
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swapped)
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        for mode in self._modes():
            stack.enter_context(mode)
        self._entered.append(stack)
        return self

    def __exit__(self, *error):
        return self._entered.pop().__exit__(*error)

    def run(self, func, args, kwargs):
        """Do an operator as CUDA would, on the numbers that the tensors hold."""
        name = func._schema.name.removeprefix("aten::")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, GpuTensor)]
        asked = kwargs.get("device")
        to_gpu = bool(ours) if asked is None else _seen(asked) == SEEN
        if not ours and not to_gpu:
            return func(*args, **kwargs)
        if self.fails is not None and self.fails(name, args, to_gpu):
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        self._obey(name, args, kwargs, tensors, to_gpu)
        self.launches += not (func.is_view or name.startswith(("empty", "detach", "new_empty")))
        if asked is not None:
            kwargs = {**kwargs, "device": CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        held_args, held_kwargs = tree_map_only(GpuTensor, lambda tensor: tensor.held, (args, kwargs))
        found = func(*held_args, **held_kwargs)
        if not to_gpu:
            return found
        made = tree_map_only(torch.Tensor, lambda tensor: GpuTensor(tensor, self), found)
        return return_and_correct_aliasing(func, args, kwargs, made)

    def _obey(self, name, args, kwargs, tensors, to_gpu):
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
        if name in TAKES_INDICES:
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
