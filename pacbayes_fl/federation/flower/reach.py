"""Whether a node can reach its server, and if not, which of the reasons it is: before anything of Flower starts."""

from __future__ import annotations

import datetime
import email.utils
import socket
import ssl
from pathlib import Path
from typing import Final

from pacbayes_fl.errors import DeployError

BEHIND: Final = 305.0
"""Seconds by which a node's clock may be behind the server's: Flower refuses signatures that are older."""
AHEAD: Final = 5.0
"""Seconds by which it may be ahead: Flower refuses signatures of later."""

_EXPIRED, _NOT_YET = 10, 9  # numbers of OpenSSL, x509_vfy.h
_STRANGE: Final = (18, 19, 20, 21)
_OTHER_HOST: Final = (62, 64)


def check_server(address: str, ca: Path, seconds: float = 10.0) -> None:
    """Check that the server is there, is the one whose authority signed it, and has the same time.

    Args:
        address: HOST:PORT of the SuperLink.
        ca: certificate of the authority.
        seconds: for which to wait.

    Raises:
        DeployError: with cause "address", "ca", "absent", "plain", "expired", "authority", "host", "tls" or "clock".
    """
    host, port = split(address)
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise DeployError(f"{ca} is no certificate of an authority: {error}", cause="ca") from error
    try:
        with (
            socket.create_connection((host, port), seconds) as line,
            context.wrap_socket(line, server_hostname=host) as secure,
        ):
            secure.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            said = secure.recv(4096).decode("latin-1")
    except ssl.SSLCertVerificationError as error:
        raise _distrusted(address, ca, error) from error
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
            what, hint = f"{address} does not speak TLS", "start the SuperLink with its certificate, never --insecure"
            raise DeployError(what, cause="plain", hint=hint) from error
        raise DeployError(f"no TLS with {address}: {error.reason or error}", cause="tls") from error
    except OSError as error:
        what = f"nobody answers at {address}: {error.strerror or error}"
        raise DeployError(what, cause="absent", hint="is the SuperLink up, and its port open to here?") from error
    check_clock(address, said)


def split(address: str) -> tuple[str, int]:
    """Take an address apart.

    Args:
        address: HOST:PORT.

    Returns:
        Host and port.

    Raises:
        DeployError: when it is none.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise DeployError(f"an address is HOST:PORT, such as server.example.org:9092, got {address!r}", cause="address")
    return host.strip("[]"), int(port)


def check_clock(address: str, headers: str) -> None:
    """Compare this machine's clock with the server's, which Flower's authentication takes for the same.

    Args:
        address: of the server, for the message.
        headers: of an answer of the server.

    Raises:
        DeployError: when they are further apart than Flower allows.
    """
    dates = [line.partition(":")[2].strip() for line in headers.splitlines() if line.lower().startswith("date:")]
    if not dates:
        return  # a proxy that tells no time
    theirs = email.utils.parsedate_to_datetime(dates[0])
    ahead = (datetime.datetime.now(datetime.UTC) - theirs).total_seconds()
    if not -BEHIND < ahead < AHEAD + 1.0:  # the header has whole seconds
        which = "ahead of" if ahead > 0 else "behind"
        what = f"this machine's clock is {abs(ahead):.0f} s {which} that of {address}"
        hint = f"set the clock: Flower refuses nodes more than {AHEAD:g} s ahead or {BEHIND:g} s behind"
        raise DeployError(what, cause="clock", hint=hint)


def _distrusted(address: str, ca: Path, error: ssl.SSLCertVerificationError) -> DeployError:
    code = error.verify_code
    if code in (_EXPIRED, _NOT_YET):
        what = "has expired" if code == _EXPIRED else "is not valid yet"
        hint = (
            "make a new one (remove server.pem, run make_keys.py, restart the SuperLink), or set this machine's clock"
        )
        return DeployError(f"the certificate of {address} {what}", cause="expired", hint=hint)
    if code in _STRANGE:
        hint = "take the ca.pem that the server's owner gave you; if it is that, somebody else answers at this address"
        return DeployError(f"{address} is not signed by the authority in {ca}", cause="authority", hint=hint)
    if code in _OTHER_HOST:
        hint = "reach it by a name in the certificate, or add this one to the hosts in make_keys.py"
        what = f"the certificate of {address} is for another host: {error.verify_message}"
        return DeployError(what, cause="host", hint=hint)
    return DeployError(f"the certificate of {address} does not hold: {error.verify_message}", cause="tls")
