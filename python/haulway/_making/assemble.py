"""Makes storages and tensors of a framework over loaded memory."""

from __future__ import annotations

from .._errors import ArgumentTypeError, InvalidArgumentError
from .host_stream import stream_from_host
from .numpy_maker import NumpyMaker


class TorchMaker:
    """Makes torch tensors on a device."""

    def __init__(self, device):
        import torch

        from .._torch import factory as _torch_factory
        from .._torch import objects as _torch_object

        _torch_object.check_device(device, "device")
        self._torch = _torch_factory
        self._device = torch.device(device)
        self._is_cpu = self._device.type == "cpu"

    def stream(self, core, rows, reading, order):
        """Yields (position in rows, storage) and loads ahead; see iterate()."""
        from . import device as _device

        if _device.is_cuda(self._device):
            return _device.cuda_stream(core, rows, self._device, reading)
        return stream_from_host(self, core, rows, reading, order)

    def storages(self, core, rows, reading):
        from . import device as _device

        if self._torch.is_meta(self._device):
            return {row: self._torch.meta_storage(core, row) for row in rows}
        if _device.is_cuda(self._device):
            return dict(zip(
                rows, _device.cuda_storages(core, rows, self._device, reading)
            ))
        return {
            row: self.storage(memory)
            for row, memory in zip(rows, reading.storages(core, rows))
        }

    def storage(self, memory):
        return self._torch.storage_of(memory)

    def tensor(self, storage, info):
        tensor = self._torch.tensor_over(storage, info)
        if self._is_cpu or storage.device.type != "cpu":
            return tensor
        return tensor.to(self._device)

    def cast(self, tensor, dtype):
        return tensor.to(self._torch.dtype_of(dtype))

    def meta(self, info, name=None):
        return self._torch.meta_tensor(info)

    def with_meta(self, chosen):
        return chosen

    def object(self, core, reading):
        from .._torch import objects as _torch_object
        from . import device as _device

        return _torch_object.build_object(
            core, self._device, reading, classes=reading.classes,
            on_gpu=_device.is_cuda(self._device),
        )


def maker(framework, device="cpu"):
    """Returns the maker of a framework's tensors on a device."""
    if framework == "torch":
        if isinstance(device, bool) or not (
            isinstance(device, (str, int)) or hasattr(device, "type")
        ):
            raise ArgumentTypeError(
                f"device is {type(device).__name__}: expected a device or its "
                "name",
                "kInvalidArgument",
            )
        return TorchMaker(device)
    if framework == "jax":
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
