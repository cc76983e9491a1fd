"""Makes storages and tensors of a framework over loaded memory."""

from __future__ import annotations

import functools

from .._errors import ArgumentTypeError, InvalidArgumentError
from .._importing import imported, importing
from .host_stream import stream_from_host
from .numpy_maker import NumpyMaker


@functools.cache
def _torch_modules():
    """Imports torch and the modules that need torch."""
    with importing:
        from .._torch import device, factory, objects

    return imported("torch"), factory, objects, device


class TorchMaker:
    """Makes torch tensors on a device."""

    def __init__(self, device):
        torch, self._torch, self._objects, self._devices = _torch_modules()
        self._objects.check_device(device, "device")
        self.device = torch.device(device)
        self._tensor_type = torch.Tensor
        self._is_cpu = self.device.type == "cpu"
        self._is_cuda = self.device.type == "cuda"
        if self._is_cpu:
            # torch restores no storage to "cpu:0", which is the same.
            self.device = torch.device("cpu")

    def stream(self, core, rows, reading, order):
        """Yields (position in rows, storage) and loads ahead; see iterate()."""
        if self._is_cuda:
            return self._devices.cuda_stream(core, rows, self.device, reading)
        return stream_from_host(self, core, rows, reading, order)

    def storages(self, core, rows, reading):
        if self._torch.is_meta(self.device):
            return {row: self._torch.meta_storage(core, row) for row in rows}
        if self._is_cuda:
            return dict(zip(
                rows, self._devices.cuda_bases(core, rows, self.device, reading)
            ))
        return {
            row: self.storage(memory)
            for row, memory in zip(rows, reading.storages(core, rows))
        }

    def storage(self, memory):
        return self._torch.storage_of(memory)

    def tensor(self, storage, info):
        if isinstance(storage, self._tensor_type):
            return storage  # It was made with its storage.
        tensor = self._torch.tensor_over(storage, info)
        if self._is_cpu or storage.device.type != "cpu":
            return tensor
        return tensor.to(self.device)

    def cast(self, tensor, dtype):
        return tensor.to(self._torch.dtype_of(dtype))

    def meta(self, info, name=None):
        return self._torch.meta_tensor(info)

    def with_meta(self, chosen):
        return chosen

    def object(self, core, reading):
        return self._objects.build_object(
            core, self.device, reading, classes=reading.classes,
            on_gpu=self._is_cuda,
        )


def maker(framework, device="cpu"):
    """Returns the maker of a framework's tensors on a device."""
    if framework == "torch":
        if isinstance(device, bool) or not (
            isinstance(device, (str, int))
            or isinstance(getattr(device, "type", None), str)
        ):
            raise ArgumentTypeError(
                f"device is {type(device).__name__}: expected a device or its "
                "name",
                "kInvalidArgument",
            )
        return TorchMaker(device)
    if framework == "jax":
        with importing:
            from .jax import JaxMaker, check_device

        check_device(device)
        return JaxMaker()
    if str(device) != "cpu":
        raise InvalidArgumentError(
            f"device is {str(device)!r}: expected 'cpu' for NumPy",
            "kInvalidArgument",
        )
    return NumpyMaker()


def tensors_by_name(make, storages, chosen):
    """Returns a flat dict of chosen tensors; `storages` are by row."""
    return {
        one.name: make.meta(one.info, one.name)
        if one.info.storage is None
        else make.tensor(storages[one.info.storage], one.info)
        for one in make.with_meta(chosen)
    }
