"""Making modules without their weights, and how much memory is in use.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise.
"""

from __future__ import annotations

import resource
import typing

import torch
from torch.overrides import TorchFunctionMode

from .. import _haulway
from .._describing import described

__all__ = [
    "CPUMemoryUsage",
    "GlobalGPUMemoryUsage",
    "MemoryUsage",
    "TorchGPUMemoryUsage",
    "convert_bytes",
    "get_device",
    "get_gpu_name",
    "get_mem_usage",
    "no_init_or_tensor",
]

_MIB = 1 << 20


def convert_bytes(num, decimal=True) -> str:
    """Formats a number of bytes for people: "1.5 GB", or "1.4 GiB".

    num: bytes.
    decimal: False counts in powers of 1024.

    Raises TypeError if `num` is not a number.
    """
    step, infix = (1000, "") if decimal else (1024, "i")
    units = ["bytes", *(f"{prefix}{infix}B" for prefix in "KMGTP")]
    for unit in units[:-1]:
        if num < step:
            return f"{num:3.1f} {unit}"
        num /= step
    return f"{num:3.1f} {units[-1]}"


def get_device() -> torch.device:
    """Returns CUDA if there is such a device, otherwise the CPU. Raises
    nothing.
    """
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def get_gpu_name() -> str:
    """Returns the name of the current CUDA device; "N/A" if there is none.
    Raises what CUDA raises.
    """
    if not torch.cuda.is_available():
        return "N/A"
    return torch.cuda.get_device_name()


class GlobalGPUMemoryUsage(typing.NamedTuple):
    """Use of a GPU's memory by all processes, in bytes: `total`, `free` and
    `used`.
    """

    total: int
    free: int
    used: int

    @classmethod
    def now(cls, device=None) -> GlobalGPUMemoryUsage | None:
        """Returns the use of `device`, by default the current one; None
        without CUDA. Raises what CUDA raises.
        """
        if not torch.cuda.is_available():
            return None
        free, total = torch.cuda.mem_get_info(device)
        return cls(total, free, total - free)

    def __str__(self):
        used, free, total = (
            f"{count // _MIB:,}MiB"
            for count in (self.used, self.free, self.total)
        )
        return f"GPU: (U: {used} F: {free} T: {total})"


class TorchGPUMemoryUsage(typing.NamedTuple):
    """Use of a GPU's memory by PyTorch in this process, in bytes: `reserved`
    and `used`, and the largest values so far, `reserved_max` and `used_max`.
    """

    reserved: int
    reserved_max: int
    used: int
    used_max: int

    @classmethod
    def now(cls, device=None) -> TorchGPUMemoryUsage | None:
        """Returns the use of `device`, by default the current one; None
        without CUDA. Raises what CUDA raises.
        """
        if not torch.cuda.is_available():
            return None
        return cls(
            torch.cuda.memory_reserved(device),
            torch.cuda.max_memory_reserved(device),
            torch.cuda.memory_allocated(device),
            torch.cuda.max_memory_allocated(device),
        )

    def __str__(self):
        counts = [f"{count // _MIB:,}MiB" for count in self]
        return (
            f"TORCH: (R: {counts[0]}/{counts[1]}, A: {counts[2]}/{counts[3]})"
        )


class CPUMemoryUsage(typing.NamedTuple):
    """Peak memory use of this process and its children, `maxrss`, and
    available memory, `free`, in bytes.
    """

    maxrss: int
    free: int

    @classmethod
    def now(cls) -> CPUMemoryUsage:
        """Returns the use at this moment. Raises OSError if the system does
        not tell.
        """
        most = sum(
            resource.getrusage(who).ru_maxrss
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        return cls(most << 10, _haulway.available_memory())

    def __str__(self):
        most, free = (f"{count // _MIB:,}MiB" for count in self)
        return f"CPU: (maxrss: {most} F: {free})"


class MemoryUsage(typing.NamedTuple):
    """All memory use: `cpu`, `gpu` and `torch`; the latter two are None
    without CUDA.
    """

    cpu: CPUMemoryUsage
    gpu: GlobalGPUMemoryUsage | None
    torch: TorchGPUMemoryUsage | None

    @classmethod
    def now(cls, device=None) -> MemoryUsage:
        """Returns the use at this moment; `device` is a GPU, by default the
        current one. Raises what CUDA raises.
        """
        return cls(
            CPUMemoryUsage.now(),
            GlobalGPUMemoryUsage.now(device),
            TorchGPUMemoryUsage.now(device),
        )

    def __str__(self):
        return " ".join(str(part) for part in self if part is not None)

    def __repr__(self):
        return described(self, str(self))


def get_mem_usage() -> str:
    """Returns str(MemoryUsage.now()), and raises the same."""
    return str(MemoryUsage.now())


class _EmptyIsMeta(TorchFunctionMode):
    """Makes torch.empty() return meta tensors in this thread, without a
    patch."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def no_init_or_tensor(loading_code=None):
    """Makes modules whose weights take neither memory nor time.

    loading_code: a callable whose result is returned; None: use this around
        the code, in a `with` statement.

    torch.empty() returns tensors on the meta device, so initializing them does
    nothing; computed values, such as buffers, are made as usual. Other threads
    are not affected. Raises TypeError if `loading_code` is not
    callable.
    """
    if loading_code is None:
        return _EmptyIsMeta()
    if not callable(loading_code):
        raise TypeError(
            "expected a callable, or nothing to use it in a with statement; "
            f"found {type(loading_code).__name__}"
        )
    with _EmptyIsMeta():
        return loading_code()
