"""Averages the tensors of checkpoints that need not fit into memory.

    python average_checkpoints.py OUT.safetensors CHECKPOINT...

At any time one tensor of each checkpoint is in memory, mapped if possible. The
output appears when it is complete. Formats may be mixed.
"""

import sys

import torch

import haulway


def main(out, paths):
    checkpoints = [haulway.open(path, framework="torch") for path in paths]
    first = checkpoints[0]
    for path, other in zip(paths, checkpoints):
        if names := sorted(set(other.keys()) ^ set(first.keys())):
            raise SystemExit(f"{path} has other tensors: {', '.join(names[:3])}")
    with haulway.writer(out) as writer:
        for name in first:
            tensors = [each[name] for each in checkpoints]
            mean = tensors[0]
            if mean.is_floating_point():
                mean = torch.zeros_like(mean, dtype=torch.float64)
                for tensor in tensors:
                    mean += tensor
                mean = (mean / len(tensors)).to(tensors[0].dtype)
            writer.add(name, mean)
        writer.commit()
    print(f"{len(first)} tensors of {len(paths)} checkpoints")
    for each in checkpoints:
        each.close()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2:])
