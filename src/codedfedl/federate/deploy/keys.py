"""Certificates and keys of a federation: an authority, the server's certificate, a key per node.

A node that does not have a registered key does not get in, and neither server nor node talks to
anybody whose certificate is not the authority's.
"""

import datetime
import ipaddress
import os
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from codedfedl.errors import InputError
from codedfedl.federate.node.node import NAME
from codedfedl.io.files import make_folder

# Days for which a new certificate is valid.
VALID_DAYS = 365.0

# Days before it expires when a certificate should be renewed.
RENEWAL_DAYS = 30

# Seconds for a handshake with the server.
HANDSHAKE_SECONDS = 10.0

# Where the SuperLink's own executor calls it.
LOOPBACK = ("127.0.0.1", "localhost")


class Keys:
    """A folder of certificates and keys, and where each is in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.authority_key = folder / "ca.crt", folder / "ca.key"
        self.server, self.server_key = folder / "server.pem", folder / "server.key"

    def node(self, name: str) -> tuple[Path, Path]:
        """Return a node's private and public key."""
        return self.folder / f"{name}.key", self.folder / f"{name}.pub"

    def check(self, host: str, names: Sequence[str]) -> None:
        """Refuse what would fail later: missing files, expired certificates, other hosts."""
        needed = [self.authority, self.server, self.server_key]
        needed += [path for name in names for path in self.node(name)]
        for path in needed:
            if not path.is_file():
                raise InputError(f"{path} does not exist: make it with codedfedl federate init")
        for path in (self.authority, self.server):
            certificate = _load(path)
            if (expiry := certificate.not_valid_after_utc) < _now():
                raise InputError(
                    f"{path} expired on {expiry:%Y-%m-%d}: renew it with codedfedl federate init, "
                    "and give ca.crt to all nodes"
                )
            if (start := certificate.not_valid_before_utc) > _now():
                raise InputError(
                    f"{path} is valid from {start:%Y-%m-%d %H:%M} UTC on: see that this machine's "
                    "clock is right"
                )
        if _general_name(host) not in _names(self.server):
            raise InputError(
                f"{self.server} is not for {host}: make it with codedfedl federate init --host "
                f"{host}"
            )

    def expiring(self) -> list[str]:
        """Return a sentence for each certificate that expires soon."""
        return [
            f"warning: {path} expires on {expiry:%Y-%m-%d}: renew it with codedfedl federate init, "
            "and start the server again"
            + (", and give ca.crt to all nodes" if path == self.authority else "")
            for path in (self.authority, self.server)
            if _is_due(expiry := _expiry(path))
        ]


def check_server(superlink: str, authority: Path) -> None:
    """Refuse a server whose certificate this machine does not accept; one may be away for now."""
    if (expiry := _expiry(authority)) < _now():
        raise InputError(
            f"{authority} expired on {expiry:%Y-%m-%d}: get the new ca.crt from the operator"
        )
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"superlink is {superlink!r}: write host:port")
    context = ssl.create_default_context(cafile=str(authority))
    address = host.strip("[]"), int(port)
    try:
        with socket.create_connection(address, HANDSHAKE_SECONDS) as link:
            context.wrap_socket(link, server_hostname=address[0]).close()
    except ssl.SSLCertVerificationError as error:
        raise InputError(
            f"the certificate of {superlink} is refused ({error.verify_message}): see that this "
            "machine's clock is right and that ca.crt is the server's; the operator renews "
            "certificates with codedfedl federate init"
        ) from None
    except OSError:
        return  # the node tries again until it is there


def make_keys(
    folder: Path, hosts: Sequence[str], names: Sequence[str], *, days: float = VALID_DAYS
) -> Keys:
    """Make an authority, a server certificate for some hosts, and a key for each node.

    An authority that is there already is used again, and a node keeps the key that it has. The
    authority's certificate is renewed where it expires within 30 days: nodes accept the server by
    the old one until then.
    """
    for name in names:
        check_name(name)
    keys = Keys(folder)
    if keys.authority.is_file() and not keys.authority_key.is_file():
        raise InputError(
            f"{keys.authority} has no ca.key beside it: copy it here, or choose another folder"
        )
    make_private(folder)
    authority_key = _kept_key(keys.authority_key, serialization.PrivateFormat.PKCS8)
    if not keys.authority.is_file() or _is_due(_expiry(keys.authority)):
        authority = _certificate("codedfedl authority", None, authority_key, authority_key, days)
        keys.authority.write_bytes(authority)
    keys.server_key.unlink(missing_ok=True)
    server_key = _kept_key(keys.server_key, serialization.PrivateFormat.PKCS8)
    keys.server.write_bytes(
        _certificate("codedfedl server", [*LOOPBACK, *hosts], server_key, authority_key, days)
    )
    for name in names:
        make_node_key(folder, name)
    return keys


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a node's key pair, on the node itself: nobody else ever needs the private one.

    A key that is there already stays as it is.

    Returns
    -------
    private, public
        The paths of both; the second is for the operator.
    """
    check_name(name)
    make_private(folder)
    private, public = Keys(folder).node(name)
    public_key = _kept_key(private, serialization.PrivateFormat.OpenSSH).public_key()
    public.write_bytes(
        public_key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return private, public


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a node's private key."""
    try:
        return _kept_key(path, serialization.PrivateFormat.OpenSSH)
    except ValueError:
        raise InputError(
            f"{path} is not a private key: make one with codedfedl federate key"
        ) from None


def check_name(name: str) -> None:
    """Refuse a name that a node cannot have."""
    if not NAME.fullmatch(name) or name in ("ca", "server"):
        raise InputError(f"the node name {name!r} is invalid: use letters, digits, . _ and -")


def make_private(folder: Path) -> None:
    """Make a folder for its owner alone; one that is there already keeps its mode."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700)


def _kept_key(path: Path, form: serialization.PrivateFormat) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a file, which is made where there is none."""
    if path.is_file():
        is_ssh = form is serialization.PrivateFormat.OpenSSH
        load = serialization.load_ssh_private_key if is_ssh else serialization.load_pem_private_key
        kept = load(path.read_bytes(), password=None)
        assert isinstance(kept, ec.EllipticCurvePrivateKey)
        return kept
    key = ec.generate_private_key(ec.SECP384R1())
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    write_secret(path, key.private_bytes(encoding, form, plain))
    return key


def _load(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path} is not a certificate: {error}") from None


def _expiry(path: Path) -> datetime.datetime:
    return _load(path).not_valid_after_utc


def _names(path: Path) -> list[x509.GeneralName]:
    """Return the hosts that a certificate is for."""
    try:
        extension = _load(path).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return []
    return list(extension.value)


def _is_due(expiry: datetime.datetime) -> bool:
    return expiry < _now() + datetime.timedelta(days=RENEWAL_DAYS)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _certificate(
    name: str,
    hosts: list[str] | None,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    days: float,
) -> bytes:
    """Return a certificate as PEM; the authority's own where there are no hosts."""
    now = _now()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "codedfedl authority")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=hosts is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .add_extension(_usage(authority=hosts is None), critical=True)
    )
    if hosts is not None:
        alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(alternatives, critical=False).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
    return builder.sign(signer, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _usage(*, authority: bool) -> x509.KeyUsage:
    """Return what a key may be used for: signatures, and the authority's for certificates."""
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    none = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=authority, crl_sign=authority, **none
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_secret(path: Path, text: bytes) -> None:
    """Write a file that its owner alone can read, whatever its mode was."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
