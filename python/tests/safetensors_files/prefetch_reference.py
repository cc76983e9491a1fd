"""The package's own prefetch(), which needs CUDA, on a machine without it.

    python prefetch_reference.py LIBRARY FILE < CASES > OUTCOMES

LIBRARY is cuda_runtime.c as a shared library named libcudart.so.13; CASES and
OUTCOMES are pickles, see outcome().
"""

import contextlib
import ctypes
import pickle
import sys

if __name__ == "__main__":
    # The package takes the first runtime that is loaded, and torch's build for
    # CUDA brings one.
    ctypes.CDLL(sys.argv[1])

import torch  # noqa: E402


def take_for_memory():
    """Makes torch take the library's memory for the CPU's."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.c_void_p
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

    def from_dlpack(capsule):
        at = pointer(capsule, b"dltensor")
        ctypes.c_int32.from_address(at + 8).value = 1  # The device's kind.
        return torch._C._from_dlpack(capsule)

    empty = torch.empty
    torch.empty = lambda *sizes, device=None, **options: empty(*sizes, **options)
    torch.from_dlpack = from_dlpack
    torch._C._cuda_getCurrentRawStream = lambda device: 0


def outcome(package, file, device, case):
    """Returns what a case gives: a list of (step, result).

    case: (framework, plan, options, steps); a step is the name of a tensor to
    take, or "iterate", "names", "len", "close", "close file".
    """
    framework, plan, options, steps = case
    done = []

    def call(step, function):
        try:
            done.append((step, function()))
        except Exception as error:
            done.append((step, type(error).__name__, str(error)))

    device = device if framework == "pt" else "cpu"
    handle = package.safe_open(file, framework, device=device)
    loader = None

    def prefetch():
        nonlocal loader
        loader = handle.prefetch(plan, **options)

    call("prefetch", prefetch)
    if loader is None:
        return done
    for step in steps:
        if step == "iterate":
            call(step, lambda: sorted(
                (name, held(tensor)) for name, tensor in loader))
        elif step == "names":
            call(step, loader.names)
        elif step == "len":
            call(step, lambda: len(loader))
        elif step == "close":
            call(step, loader.close)
        elif step == "close file":
            call(step, lambda: handle.__exit__(None, None, None))
        else:
            call(step, lambda step=step: held(loader.take(step)))
    with contextlib.suppress(Exception):
        loader.close()
    return done


def held(tensor):
    """Returns a tensor's dtype, shape and bytes."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8)
    return str(tensor.dtype), list(tensor.shape), bytes(data.tolist())


if __name__ == "__main__":
    import safetensors

    take_for_memory()
    cases = pickle.load(sys.stdin.buffer)
    pickle.dump(
        [outcome(safetensors, sys.argv[2], "cuda:0", case) for case in cases],
        sys.stdout.buffer,
    )
