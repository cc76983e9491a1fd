"""The guarantees in the docstrings of haulway.tensorizer."""

import pytest
import torch

import haulway
import haulway.tensorizer


def flipped_file(path):
    """Writes a file of two tensors, and flips a bit of one afterwards."""
    tensors = {"a": torch.arange(1000.0), "b": torch.ones(3)}
    with haulway.tensorizer.TensorSerializer(path) as serializer:
        serializer.write_state_dict(tensors)
    data = bytearray(path.read_bytes())
    data[data.index(tensors["a"].numpy().tobytes()) + 5] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("read", [
    lambda tensors: list(tensors.read_tensors(verify_hash=True)),
    lambda tensors: list(tensors.read_numpy_arrays(verify_hash=True)),
])
def test_what_was_loaded_unverified_is_verified_when_asked(
    tmp_path, read, lazy
):
    path = flipped_file(tmp_path / "a.tensors")
    tensors = haulway.tensorizer.TensorDeserializer(
        path, device="cpu", lazy_load=lazy
    )
    with pytest.raises(haulway.tensorizer.HashMismatchError, match='"a"|\'a\''):
        read(tensors)


@pytest.mark.parametrize("lazy", [False, True])
def test_modules_are_verified_when_asked(tmp_path, lazy):
    module = torch.nn.Linear(300, 4)
    path = tmp_path / "m.tensors"
    with haulway.tensorizer.TensorSerializer(path) as serializer:
        serializer.write_module(module)
    data = bytearray(path.read_bytes())
    data[data.index(module.weight.detach().numpy().tobytes())] ^= 1
    path.write_bytes(data)

    def opened(**options):
        return haulway.tensorizer.TensorDeserializer(
            path, device="cpu", lazy_load=lazy, **options
        )

    assert opened().load_into_module(torch.nn.Linear(300, 4)) == 2
    with pytest.raises(haulway.tensorizer.HashMismatchError, match="weight"):
        opened().load_into_module(torch.nn.Linear(300, 4), verify_hash=True)


def test_verified_once_is_not_read_again(tmp_path):
    path = tmp_path / "a.tensors"
    with haulway.tensorizer.TensorSerializer(path) as serializer:
        serializer.write_state_dict({"a": torch.arange(1000.0)})
    tensors = haulway.tensorizer.TensorDeserializer(
        path, device="cpu", verify_hash=True
    )
    before = tensors.total_bytes_read
    list(tensors.read_tensors(verify_hash=True))
    assert tensors.total_bytes_read == before


def test_a_file_of_another_format_is_an_invalid_file(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    with pytest.raises(haulway.tensorizer.InvalidFileError,
                       match="Not a tensorizer file"):
        haulway.tensorizer.TensorDeserializer(tmp_path / "a.pt")


def test_a_prefix_is_no_str(tmp_path):
    """A str would be a sequence of its letters."""
    path = tmp_path / "a.tensors"
    with haulway.tensorizer.TensorSerializer(path) as serializer:
        serializer.write_state_dict({"ab": torch.ones(1)})
    tensors = haulway.tensorizer.TensorDeserializer(path, device="cpu")
    assert tensors.tree(["ab"]).item() == 1
    with pytest.raises(TypeError, match=r"prefix is 'ab'.*\['ab'\]"):
        tensors.tree("ab")


@pytest.mark.parametrize(("call", "words"), [
    (lambda ours, path: ours.TensorDeserializer(path, dtype="float16"),
     "dtype is str"),
    (lambda ours, path: ours.EncryptionParams.from_string("x", -1, 8192),
     "opslimit: expected"),
    (lambda ours, path: ours.EncryptionParams.from_string("x", 1, 1 << 70),
     "memlimit: expected"),
    (lambda ours, path: ours.EncryptionParams.from_string("x", 1, 8192, 16),
     "salt is int: expected 16 bytes"),
    (lambda ours, path: ours.TensorSerializer(path, layout=None),
     "layout: expected 'interleaved' or 'segments'"),
    (lambda ours, path: ours.TensorSerializer(path, max_tensors=-1),
     "max_tensors: expected a number"),
    (lambda ours, path: ours.TensorSerializer(path, limit_cpu_concurrency=1.5),
     "limit_cpu_concurrency: expected a number"),
])
def test_wrong_arguments_are_refused_in_words(tmp_path, call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(haulway.tensorizer, tmp_path / "a.tensors")


@pytest.mark.parametrize(("index", "name", "words"), [
    (-1, "a", "idx: expected a number"), (65536, "a", "idx: expected a number"),
    ("x", "a", "idx: expected a number"), (1.5, "a", "idx: expected a number"),
    (0, (1.5,), "name is"), (0, 3, "name is"), (0, b"a", "name is"),
    (0, ("a", -1), "name is"), (0, ("a", True), "name is"),
])
def test_wrong_names_and_numbers_are_refused(tmp_path, index, name, words):
    with haulway.tensorizer.TensorSerializer(tmp_path / "a") as serializer:
        with pytest.raises((TypeError, ValueError), match=words):
            serializer.write_tensor(
                index, name, haulway.tensorizer.TensorType.STATE_DICT,
                torch.ones(1),
            )
        serializer.write_tensor(
            65535, ("a", 0), haulway.tensorizer.TensorType.STATE_DICT,
            torch.ones(1),
        )


def test_to_redis_takes_a_client(tmp_path):
    path = tmp_path / "a.tensors"
    with haulway.tensorizer.TensorSerializer(path) as serializer:
        serializer.write_state_dict({"a": torch.ones(1)})
    tensors = haulway.tensorizer.TensorDeserializer(path, device="cpu")
    with pytest.raises(TypeError, match="redis_client is str"):
        tensors.to_redis("redis://host", "prefix")


def test_a_part_of_a_local_file_is_read_ahead_as_far_as_asked(tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(256)) * 4096)
    with haulway.tensorizer.stream_io.open_stream(
        path, begin=100, end=500_000, buffer_size=10_000
    ) as stream:
        assert stream.read(3) == bytes([100, 101, 102])
        assert len(stream._kept) <= 10_000
