"""The file of a release: it says all of it again, and no changed byte passes for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from pacbayes_fl.errors import UNREADABLE
from pacbayes_fl.privacy import release_file
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.mechanisms import Cohorts
from pacbayes_fl.privacy.release_file import Release

CHARGE = Charge("dp-ftrl", 2.5, 7, Cohorts(9, 3, "in-order", order="abc"))
MEAN = {"update.w": torch.randn(1, 2, 3, generator=torch.Generator().manual_seed(0)), "below": torch.ones(1).double()}


def test_a_release_is_read_as_it_was_written(tmp_path: Path) -> None:
    for release in (
        Release(5, 3, CHARGE, (11, 12), MEAN, 2, ("diverged",), "columns", (12,)),
        Release(0, 1, CHARGE, (), {"mean": torch.zeros(1, 1)}),
    ):
        (tmp_path / "release").write_bytes(release_file.to_bytes(release))
        again = release_file.read(tmp_path / "release")
        assert again._replace(mean={}) == release._replace(mean={})
        assert {n: t.tolist() for n, t in again.mean.items()} == {n: t.tolist() for n, t in release.mean.items()}
        assert all(again.mean[name].dtype == release.mean[name].dtype for name in release.mean)


def test_no_changed_byte_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = release_file.to_bytes(Release(5, 3, CHARGE, (11, 12), MEAN))
    length = int.from_bytes(good[:8], "little")
    for at in (*range(8, 8 + length, 23), *range(8 + length, len(good), 5)):
        changed = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        (tmp_path / "release").write_bytes(changed)
        with pytest.raises((*UNREADABLE, SafetensorError)):
            release_file.read(tmp_path / "release")
    monkeypatch.setattr(release_file, "FORMAT_VERSION", 2)
    (tmp_path / "release").write_bytes(good)
    with pytest.raises(ValueError, match="another version"):
        release_file.read(tmp_path / "release")
