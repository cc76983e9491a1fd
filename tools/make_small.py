#!/usr/bin/env python3
"""Writes the valid checkpoints in testdata/, with PyTorch 2.13.

small.pt, which scripts/quickstart shows, is a training checkpoint of a small
language model: tied weights, an optimizer, and tensors of several types.
golden/tied*.pt are small enough to flip every bit of them.
"""

import pathlib

import torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Model(nn.Module):
    def __init__(self, vocabulary=64, width=32):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.attention = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool).tril())
        self.register_buffer("positions", torch.arange(8))

    def forward(self, tokens):
        hidden = self.norm(self.embedding(tokens))
        query, _, _ = self.attention(hidden).chunk(3, -1)
        return self.head(query)


def main():
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.arange(8)).logsumexp(-1).mean().backward()
    optimizer.step()
    scale = torch.linspace(0.5, 2, 32)
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "half": {
                "bf16": model.attention.weight.detach().to(torch.bfloat16),
                "f8": scale.to(torch.float8_e4m3fn),
                "transposed": scale.reshape(4, 8).T,
            },
            "epoch": 3,
            "config": {"width": 32, "heads": (4, 8), "name": "small"},
        },
        ROOT / "testdata" / "small.pt",
    )

    weight = torch.arange(6.0).view(2, 3)
    tied = {"embed": weight, "head": weight, "row": weight[1]}
    tied["n"] = torch.ones(2).half()
    golden = ROOT / "testdata" / "golden"
    golden.mkdir(exist_ok=True)
    torch.save(tied, golden / "tied.pt")
    torch.save(
        tied, golden / "tied_legacy.pt", _use_new_zipfile_serialization=False
    )


if __name__ == "__main__":
    main()
