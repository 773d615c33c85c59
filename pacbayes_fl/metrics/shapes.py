"""Dimension letters, and a check that a tensor has the shape that a letter string says.

`K` clients in this call, `N` padded rows, `P` particles, `S` posterior draws, `D` flat parameters, `B` size of a
subnetwork, `C` classes, `J` clusters, `d` input features. The order is always `S, K, P, N, ...`.
"""

from __future__ import annotations

from torch import Tensor

from pacbayes_fl.errors import ShapeError


def require(name: str, tensor: Tensor, pattern: str, **sizes: int) -> dict[str, int]:
    """Check a tensor against a pattern of dimension letters and return the sizes that it binds.

    `require("y", y, "K N", K=3)` accepts a tensor [3, N] and returns `{"K": 3, "N": ...}`; a trailing `*` stands for
    any number of further dimensions, and a number for itself.

    Args:
        name: what the error calls the tensor.
        tensor: the tensor [*] to check.
        pattern: letters or numbers separated by spaces.
        **sizes: letters whose size is already known.

    Returns:
        The size of every letter.

    Raises:
        ShapeError: naming the tensor, the pattern and the shape that came.
    """
    if not isinstance(tensor, Tensor):
        raise ShapeError(
            f"{name} must be a tensor [{pattern}], got {type(tensor).__name__} (torch.as_tensor makes one)"
        )
    parts = pattern.split()
    open_ended = bool(parts) and parts[-1] == "*"
    if open_ended:
        parts = parts[:-1]
    bound = dict(sizes)
    fits = tensor.dim() >= len(parts) if open_ended else tensor.dim() == len(parts)
    if fits:
        for part, size in zip(parts, tensor.shape, strict=False):
            expected = int(part) if part.isdigit() else bound.setdefault(part, size)
            fits = fits and expected == size
    if not fits:
        known = ", ".join(f"{letter}={size}" for letter, size in sizes.items())
        raise ShapeError(f"{name} must be [{pattern}]{' with ' + known if known else ''}, got {list(tensor.shape)}")
    return bound
