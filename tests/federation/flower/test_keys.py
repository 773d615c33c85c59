"""Keys: whose they are, who has signed what, and what stays when they are made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation.flower import keys

pytestmark = pytest.mark.deploy
x509: Any = pytest.importorskip("cryptography.x509", reason="comes with Flower; `make deploy-test` has it")


def test_keys_are_the_owners_alone_and_stay(tmp_path: Path) -> None:
    keys.write_keys(tmp_path, ["a", "b"], ["fl.example.org", "10.0.0.7"])
    files = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}
    own = {"node.key", "node.pub", "loopback.pem", "loopback.key", "ca.pem"}
    expected = {"ca.pem", "ca.key", "server.pem", "server.key"}
    assert {*files} == expected | {f"{node}/{name}" for node in "ab" for name in own}
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o600}
    before = {name: path.read_bytes() for name, path in files.items()}
    assert before["a/node.pub"].startswith(b"ecdsa-sha2-nistp384 ") and before["a/node.pub"] != before["b/node.pub"]
    assert before["a/ca.pem"] == before["ca.pem"]
    keys.write_keys(tmp_path, ["a", "b", "c"])
    assert all(path.read_bytes() == before[name] for name, path in files.items()) and (tmp_path / "c").is_dir()
    (tmp_path / "server.pem").unlink()
    keys.write_keys(tmp_path, ["a"])  # a certificate is renewed under the authority that nodes have
    ca, server = (x509.load_pem_x509_certificate((tmp_path / name).read_bytes()) for name in ("ca.pem", "server.pem"))
    server.verify_directly_issued_by(ca)
    assert (tmp_path / "ca.pem").read_bytes() == before["ca.pem"]


def test_a_node_whose_owner_has_sent_a_public_key_gets_no_other(tmp_path: Path) -> None:
    keys.write_node(tmp_path / "mine" / "a")
    (tmp_path / "server" / "a").mkdir(parents=True)
    sent = (tmp_path / "mine" / "a" / "node.pub").read_bytes()
    (tmp_path / "server" / "a" / "node.pub").write_bytes(sent)
    keys.write_keys(tmp_path / "server", ["a"])
    assert (tmp_path / "server" / "a" / "node.pub").read_bytes() == sent
    assert not (tmp_path / "server" / "a" / "node.key").exists()


def test_a_server_without_an_authority_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"the authority in .* cannot be read"):
        keys.write_server(tmp_path)
