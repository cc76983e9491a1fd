"""The engine's table of dtypes, which is in src/tensor/dtype.cc."""

import collections

from . import _haulway

# name: Haulway's. torch_name: torch's, "" if it has none; NumPy and ml_dtypes
# use the same. kind: "float", "complex", "int", "uint", "bool", "quantized",
# "packed", "bits", "blocks" or "bytes". in_numpy: "itself", "ml_dtypes" or "".
# numpy_bits: NumPy's type of the same bits. elements: number of elements in an
# item. in_safetensors: the name in these files, "" if they cannot hold the
# dtype. in_dlpack: whether DLPack has a code for it.
Row = collections.namedtuple("Row", (
    "name", "torch_name", "kind", "in_numpy", "numpy_bits", "item_bytes",
    "elements", "in_safetensors", "in_dlpack",
))
TABLE = {row[0]: Row(*row) for row in _haulway.dtypes()}
# Dtypes that are returned as bytes, not numbers, such as ggml's blocks.
BYTES = frozenset(
    row.name for row in TABLE.values() if row.kind in ("blocks", "bytes"))
