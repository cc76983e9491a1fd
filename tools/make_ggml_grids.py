#!/usr/bin/env python3
"""Writes src/arithmetic/ggml_grids.h: the grids of ggml's IQ types.

The values are those of the installed package gguf (MIT), class by class:
grid_hex, grid_map and ksigns of gguf.quants. Run it when a type is added.
"""

import pathlib

import gguf.quants
import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "src" / "arithmetic" / "ggml_grids.h"

# The name here, and the class there. IQ1_M has the grid of IQ1_S.
GRIDS = {
    "Iq2Xxs": "IQ2_XXS",
    "Iq2Xs": "IQ2_XS",
    "Iq2S": "IQ2_S",
    "Iq3Xxs": "IQ3_XXS",
    "Iq3S": "IQ3_S",
    "Iq1S": "IQ1_S",
}

HEAD = """\
// The grids of ggml's IQ types: each number packs the values of one point, the
// first one lowest, as rows of the map of its type. A type of blocks looks
// eight or four neighbouring elements up at once. The signs of IQ2_XXS, IQ2_XS
// and IQ3_XXS are seven stored bits and one that makes their number even.
//
// Made by tools/make_ggml_grids.py from the package gguf. Do not edit.

#pragma once

#include <array>
#include <cstdint>

namespace haulway::arithmetic {

"""


def rows(numbers, width):
    text = [f"0x{number:0{width}x}" for number in numbers]
    per_line = 76 // (width + 4)
    return "".join(
        "    " + ", ".join(text[i:i + per_line]) + ",\n"
        for i in range(0, len(text), per_line)
    )


def packed(name):
    """Returns (map, bits of a value, one number for each point)."""
    kind = getattr(gguf.quants, name)
    kind.init_grid()
    points, values = kind.grid_shape
    grid = kind.grid.reshape(points, values)
    bits = 2 if len(kind.grid_map) <= 4 else 3
    row_of = {float(value): row for row, value in enumerate(kind.grid_map)}
    return kind.grid_map, bits, values, [
        sum(row_of[float(value)] << (bits * i) for i, value in enumerate(point))
        for point in numpy.asarray(grid)
    ]


def main():
    text = HEAD
    signs = gguf.quants.IQ2_XXS.ksigns
    text += ("// Signs of eight values, as bits, by their seven stored ones.\n"
             f"inline constexpr std::array<uint8_t, {len(signs)}> kSigns = {{\n"
             f"{rows(signs, 2)}}};\n\n")
    for name, there in GRIDS.items():
        values, bits, count, numbers = packed(there)
        text += (
            f"// {there}: {count} values of {bits} bits in each number.\n"
            f"inline constexpr std::array<int8_t, {len(values)}> "
            f"k{name}Map = {{{', '.join(map(str, values))}}};\n"
            f"inline constexpr std::array<uint16_t, {len(numbers)}> "
            f"k{name}Packed = {{\n{rows(numbers, 4)}}};\n\n"
        )
    OUT.write_text(text + "}  // namespace haulway::arithmetic\n")


if __name__ == "__main__":
    main()
