"""A trainer that saves in the background and resumes where it was stopped.

    python train_and_resume.py CHECKPOINT STEPS

The checkpoint is always complete, whenever the program is killed: run it again
and it resumes, with the same numbers as an uninterrupted run.
"""

import pathlib
import sys

import torch

import haulway


def make():
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    )
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def batch(step):
    """Returns the same batch for a step, so that runs can be compared."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(32, 8, generator=generator)
    return inputs, inputs.sum(1, keepdim=True)


def train(path, steps, every=20):
    model, optimizer = make()
    begin, saving = 0, None
    if path.exists():
        state = haulway.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
        print(f"resumed at step {begin}")
    for step in range(begin, steps):
        inputs, wanted = batch(step)
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % every == 0:
            if saving is not None:
                saving.result()  # Raises the save's error, e.g. a full disk.
            state = {"model": model.state_dict(), "step": step + 1,
                     "optimizer": optimizer.state_dict()}
            saving = haulway.save_async(state, path)  # Copies, then returns.
    if saving is not None:
        saving.result()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    train(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
