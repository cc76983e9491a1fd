"""haulway.formats(): the table, and its consequences."""

import pytest
import torch

import haulway
from needed_metadata import needed


def test_the_table_has_a_row_for_each_format():
    rows = {row.name: row for row in haulway.formats()}
    assert len(rows) == len(haulway.formats())
    assert rows["torch"].suffixes[0] == ".pt"
    assert rows["torch"].nested and rows["torch"].views
    assert not rows["safetensors"].nested
    assert [name for name, row in rows.items() if row.encrypts] == [
        "tensorizer"
    ]
    assert repr(rows["torch"]) == "Format('torch')"


def test_the_command_lists_the_same(run):
    names = " ".join(row.name for row in haulway.formats())
    assert f"formats: {names}" in run("--version").stdout


@pytest.mark.parametrize(
    "row", [row for row in haulway.formats() if row.suffixes],
    ids=lambda row: row.name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_what_a_format_cannot_hold_is_said_in_the_same_words(tmp_path, row):
    path = tmp_path / f"m{row.suffixes[0]}"
    meta = torch.ones(2, device="meta")
    codes = torch.quantize_per_tensor(torch.ones(2), 0.5, 1, torch.qint8)
    for tensor, is_held, words in (
        (meta, row.no_data, "meta tensor, which has no data"),
        (codes, row.nested and row.views, "quantized tensor, which"),
    ):
        def save(tensor=tensor):
            return haulway.save({"a": tensor}, path, **needed(row.suffixes[0]))

        if is_held:
            save()
            assert "a" in haulway.load(path)
        else:
            with pytest.raises(haulway.UnsupportedError, match=words):
                save()


@pytest.mark.parametrize("row", haulway.formats(), ids=lambda row: row.name)
def test_endings_count_in_any_case(tmp_path, run, row):
    for suffix in row.suffixes:
        path = tmp_path / f"UP{suffix.upper()}"
        haulway.save({"a": torch.ones(2)}, path, **needed(suffix))
        with haulway.open(path) as checkpoint:
            assert checkpoint.format == row.name
        assert "F32" in run("ls", tmp_path).stdout
        path.unlink()
