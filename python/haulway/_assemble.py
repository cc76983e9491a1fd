"""Making: storages and tensors of a framework over memory that was loaded."""

from __future__ import annotations

from ._dtypes import numpy_dtype
from ._errors import ArgumentTypeError, InvalidArgumentError, UnsupportedError
from ._objects import NumpyFactory, make_array
from ._reading import build_over


class NumpyMaker:
    """Makes NumPy arrays."""

    called = "NumPy"  # In messages.

    def storages(self, core, rows, reading):
        """{row: what tensor() takes} of storages, loaded."""
        return dict(zip(rows, reading.storages(core, rows)))

    def storage(self, memory):
        """What tensor() takes, of a Memory that holds a whole storage."""
        return memory

    def tensor(self, storage, info):
        """The tensor that a TensorInfo describes."""
        return make_array(info, storage)

    def cast(self, tensor, dtype):
        """A tensor of the dtype that Haulway calls so."""
        return tensor.astype(numpy_dtype(dtype), copy=False)

    def meta(self, info, name=None):
        """One without data."""
        what = "the tensor" if name is None else repr(name)
        raise UnsupportedError(
            f"{what} is a meta tensor, which has no data for {self.called}",
            "kUnsupported",
        )

    def with_meta(self, chosen):
        """Those of the Chosen of which a dict by name can hold something."""
        return [one for one in chosen if one.info.storage is not None]

    def object(self, core, reading):
        """The whole object, loaded."""
        memories = reading.storages(core, range(core.storage_count()))
        return build_over(core, NumpyFactory(core, memories))


class TorchMaker:
    """Makes torch tensors, on a device."""

    def __init__(self, device):
        import torch

        from . import _torch_factory, _torch_object

        _torch_object.check_device(device, "device")
        self._torch = _torch_factory
        self._device = device
        self._is_cpu = torch.device(device).type == "cpu"

    def storages(self, core, rows, reading):
        from . import _device

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
        from . import _device, _torch_object

        return _torch_object.build_object(
            core, None if self._is_cpu else self._device, reading,
            classes=reading.classes, on_gpu=_device.is_cuda(self._device),
        )


def maker(framework, device="cpu"):
    """Who makes tensors of a framework on a device."""
    if framework == "torch":
        if not isinstance(device, (str, int)) and not hasattr(device, "type"):
            raise ArgumentTypeError(
                f"device is {type(device).__name__}: expected a device or its "
                "name",
                "kInvalidArgument",
            )
        return TorchMaker(device)
    if framework == "jax":
        from ._jax import JaxMaker, check_device

        check_device(device)
        return JaxMaker()
    if str(device) != "cpu":
        raise InvalidArgumentError(
            f"device is {str(device)!r}: expected 'cpu' for NumPy",
            "kInvalidArgument",
        )
    return NumpyMaker()


def tensors_by_name(make, storages, chosen):
    """A flat dict of chosen tensors, over storages by row."""
    return {
        one.name: make.meta(one.info, one.name)
        if one.info.storage is None
        else make.tensor(storages[one.info.storage], one.info)
        for one in make.with_meta(chosen)
    }
