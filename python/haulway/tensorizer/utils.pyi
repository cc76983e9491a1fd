from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch

__all__: list[str]

def convert_bytes(num: float, decimal: bool = True) -> str: ...
def get_device() -> torch.device: ...
def get_gpu_name() -> str: ...
def get_mem_usage() -> str: ...
def no_init_or_tensor(
    loading_code: Any = None,
) -> AbstractContextManager[Any] | Any: ...

class GlobalGPUMemoryUsage(NamedTuple):
    total: int
    free: int
    used: int
    @classmethod
    def now(cls, device: Any = None) -> GlobalGPUMemoryUsage | None: ...

class TorchGPUMemoryUsage(NamedTuple):
    reserved: int
    reserved_max: int
    used: int
    used_max: int
    @classmethod
    def now(cls, device: Any = None) -> TorchGPUMemoryUsage | None: ...

class CPUMemoryUsage(NamedTuple):
    maxrss: int
    free: int
    @classmethod
    def now(cls) -> CPUMemoryUsage: ...

class MemoryUsage(NamedTuple):
    cpu: CPUMemoryUsage
    gpu: GlobalGPUMemoryUsage | None
    torch: TorchGPUMemoryUsage | None
    @classmethod
    def now(cls, device: Any = None) -> MemoryUsage: ...
