"""docs/bulk.md: the files that its programs leave behind."""

import haulway
from page_code import run_program


def test_the_page_does_what_it_says(tmp_path):
    assert run_program("docs/bulk.md", tmp_path) == "3 3 0 0 0\n"
    out = tmp_path / "converted/model-002.safetensors"
    assert [dtype for dtype, *_ in haulway.manifest(out).values()] == ["BF16"]
