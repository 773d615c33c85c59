"""Keys of a deployment: a certificate authority, the server's certificate, and the key by which Flower knows a node."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pacbayes_fl.errors import DeployError
from pacbayes_fl.files import make_folder, opened

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

LOOPBACK: Final = ("localhost", "127.0.0.1")
_YEARS: Final = 10 * 365  # days for which an authority stands, so that the server's certificate can be renewed under it


def write_keys(folder: Path, nodes: Sequence[str], hosts: Sequence[str] = LOOPBACK, days: float = 365) -> None:
    """Make what is missing of all keys of a deployment.

    Args:
        folder: in which those of the server are written, and those of each node in the folder of its name, which is
            what its owner gets.
        nodes: their names.
        hosts: names and addresses under which nodes reach the server.
        days: for which the server's certificate holds.
    """
    write_authority(folder)
    write_server(folder, hosts, days)
    for name in nodes:
        write_node(folder / name)
        _put(folder / name / "ca.pem", (folder / "ca.pem").read_bytes())


def write_authority(folder: Path) -> None:
    """Make a certificate authority, where there is none.

    Args:
        folder: in which `ca.pem`, which every node gets, and `ca.key`, which nobody gets, are written.
    """
    if not (folder / "ca.key").exists():
        key = _new_key()
        _put(folder / "ca.key", _private(key))
        _put(folder / "ca.pem", _pem(_certificate("pacbayes-fl deployment", key, (), None, _YEARS)))


def write_server(folder: Path, hosts: Sequence[str] = LOOPBACK, days: float = 365) -> None:
    """Make the server's certificate, where there is none, signed by the authority in the same folder.

    Args:
        folder: in which `server.pem` and `server.key` are written.
        hosts: names and addresses under which nodes reach the server.
        days: for which it holds.

    Raises:
        DeployError: when there is no authority.
    """
    if (folder / "server.pem").exists():
        return
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    try:
        ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        ca_key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except (OSError, ValueError) as error:
        raise DeployError(f"the authority in {folder} cannot be read: {error}") from error
    key = _new_key()
    _put(folder / "server.key", _private(key))
    _put(folder / "server.pem", _pem(_certificate(hosts[0], key, hosts, (ca, ca_key), days)))


def write_node(folder: Path) -> None:
    """Make a node's key pair, where none of it is there, and a certificate for its own loopback address.

    Args:
        folder: of the node, in which `node.key`, `node.pub`, which the server's owner gets, `loopback.pem` and
            `loopback.key` are written.
    """
    if (folder / "node.pub").exists():  # also one that the node's owner has made and sent
        return
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    inner = _new_key()
    _put(folder / "loopback.key", _private(inner))
    _put(folder / "loopback.pem", _pem(_certificate("localhost", inner, LOOPBACK, None, _YEARS)))
    key = _new_key()
    _put(folder / "node.key", _private(key, openssh=True))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _put(folder / "node.pub", public + b"\n")  # at last: it stands for all


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _private(key: EllipticCurvePrivateKey, openssh: bool = False) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    form = PrivateFormat.OpenSSH if openssh else PrivateFormat.PKCS8
    return bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return bytes(certificate.public_bytes(Encoding.PEM))


def _put(path: Path, data: bytes) -> None:
    make_folder(path.parent)
    with opened(path, "wb") as file:
        file.write(data)


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    hosts: Sequence[str],
    issuer: tuple[x509.Certificate, EllipticCurvePrivateKey] | None,
    days: float,
) -> x509.Certificate:
    """Sign a certificate; its own where it has no issuer."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    ca_name, ca_key = (subject, key) if issuer is None else (issuer[0].subject, issuer[1])
    now = datetime.datetime.now(datetime.UTC)
    begun = x509.CertificateBuilder().subject_name(subject).issuer_name(ca_name).public_key(key.public_key())
    begun = begun.serial_number(x509.random_serial_number())
    begun = begun.not_valid_before(min(now, now + datetime.timedelta(days=days)) - datetime.timedelta(hours=1))
    begun = begun.not_valid_after(now + datetime.timedelta(days=days))
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    begun = begun.add_extension(identifier, critical=False).add_extension(authority, critical=False)
    if issuer is None:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        begun = begun.add_extension(x509.BasicConstraints(True, None), critical=True)
        begun = begun.add_extension(usage, critical=True)
    if hosts:
        begun = begun.add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
    return begun.sign(ca_key, hashes.SHA384())


def _general(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
