"""torchvision can be imported, whatever its compiled operators do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pacbayes_fl.data import torchvision_ops

FRESH = """
import os
import sys
import pacbayes_fl
assert "torchvision" not in sys.modules, "it costs a second, and most studies have no images"


def imports(before):
    exec(before)
    from pacbayes_fl.data.torchvision_ops import ensure_importable
    state = ensure_importable()
    assert "torchvision" not in sys.modules and state in ("native", "shimmed"), state
    import gc
    gc.collect()
    import torchvision.datasets
    import torchvision.transforms.v2
    assert ensure_importable() == ensure_importable() == state
    if state == "native":
        import torch
        torchvision.ops.nms(torch.tensor([[0.0, 0, 1, 1]]), torch.ones(1), 0.5)


for before in sys.argv[1:]:  # each from a process that has imported no more than this one
    if not (child := os.fork()):
        imports(before)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, before
"""
FAILED = """
try:
    import torchvision
except RuntimeError as error:
    assert "nms" in str(error)
for name in [name for name in sys.modules if name.startswith("torchvision")]:
    del sys.modules[name]
"""


@pytest.mark.slow
def test_a_fresh_process_can_import_it_first_and_after_a_failed_import() -> None:
    native = torchvision_ops.ensure_importable() == "native"  # the import does not fail there
    befores = [""] if native else ["", FAILED]
    done = subprocess.run([sys.executable, "-c", FRESH, *befores], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_absent_when_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision_ops.importlib.util, "find_spec", lambda name: None)
    assert torchvision_ops.ensure_importable() == "absent"


def test_only_loadable_libraries_count(tmp_path: Path) -> None:
    note, broken = tmp_path / "_C.txt", tmp_path / "_C.so"
    note.write_text("no library")
    broken.write_bytes(b"no library either")
    assert not torchvision_ops._loads(note) and not torchvision_ops._loads(broken)


def test_where_it_is_shimmed_the_operators_are_declared_but_empty() -> None:
    if torchvision_ops.ensure_importable() == "shimmed":
        with pytest.raises(NotImplementedError, match="nms"):
            torch.ops.torchvision.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
