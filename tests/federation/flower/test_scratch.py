"""Temporary folders of deployments that were killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pacbayes_fl.federation.flower.scratch import scratch

OWNER = """
import time
from pacbayes_fl.federation.flower.scratch import scratch
with scratch() as folder:
    (folder / "ca.key").write_text("secret")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_folder_goes_with_its_block_and_after_a_kill_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in ("pacbayes-fl-of-an-older-version", "of somebody else"):
        (tmp_path / name).mkdir()
    (tmp_path / "pacbayes-fl-link").symlink_to(tmp_path / "of somebody else")
    (tmp_path / "of somebody else" / "owner.lock").touch()
    strange = {*tmp_path.iterdir()}
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        killed = Path(owner.stdout.readline().strip())
        with scratch() as folder:
            assert folder.stat().st_mode & 0o777 == 0o700
            assert (killed / "ca.key").exists(), "its process lives"
        assert not folder.exists()
        owner.kill()
    assert killed.exists()
    with pytest.raises(ZeroDivisionError), scratch() as folder:
        assert not killed.exists()
        raise ZeroDivisionError
    assert {*tmp_path.iterdir()} == strange
