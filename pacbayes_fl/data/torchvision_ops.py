"""Let torchvision be imported where its compiled operators do not fit this torch.

A wheel of torchvision that was built for CUDA cannot load its operators beside a CPU build of torch, and then even
`import torchvision.datasets` fails: torchvision describes the shapes of `nms` and `qnms`, which nobody has declared.
Reading data sets needs no operator, so it is enough to declare the two.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_OPERATORS = ("nms", "qnms")
_KEPT = "_declared_by_pacbayes_fl"


def ensure_importable() -> str:
    """Make `import torchvision` possible; to be called just before it, as often as one likes.

    Returns:
        "absent" without torchvision, "native" when its compiled operators load, "shimmed" when only its Python works.
    """
    spec = importlib.util.find_spec("torchvision")  # finds it without importing it
    if spec is None or spec.origin is None:
        return "absent"
    operators = torch.ops.torchvision
    if hasattr(operators, _KEPT):
        return "shimmed"
    if any(_loads(file) for file in sorted(Path(spec.origin).parent.glob("_C*"))):
        return "native"
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _OPERATORS:
        if not hasattr(operators, name):  # another library may have declared it
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    setattr(operators, _KEPT, library)  # declarations live as long as the library, and that as long as the operators
    return "shimmed"


def _loads(file: Path) -> bool:
    """Load compiled operators; torchvision loading them once more does no harm."""
    if file.suffix not in (".so", ".pyd", ".dylib"):
        return False
    try:
        torch.ops.load_library(str(file))
    except OSError:
        return False
    return True
