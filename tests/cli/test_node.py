"""The command `node`."""

from __future__ import annotations

import pytest

from pacbayes_fl.cli import main


def test_a_nodes_owner_is_told_what_would_leave(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "check", "polynomial", "--client", "poly_03", "--set", "data.scale=client"]) == 0
    said = capsys.readouterr().out
    assert "names of clients: poly_03\n" in said and "numbers of training rows: poly_03 " in said
    assert main(["node", "check", "polynomial", "--client", "x", "--set", "data.scale=client"]) == 1
    assert "client 'x': it is not in the data" in capsys.readouterr().err
    assert main(["node", "check", "polynomial", "--set", "deploy.share=[]"]) == 1
    assert "deploy.share with 'moments' lets them send these" in capsys.readouterr().err
