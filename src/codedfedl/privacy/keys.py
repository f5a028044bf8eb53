"""Keys for masks: one pair for the helper, one for every client.

They are X25519 keys in hexadecimal digits. The private one is made where it is used and never
leaves; the public one lies beside it, with the ending ``.pub``.
"""

import os
import re
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from codedfedl.errors import InputError
from codedfedl.io.files import make_folder, replacing

__all__ = ["own_key", "public_digits", "read_public"]


def own_key(path: Path) -> X25519PrivateKey:
    """Return the private key in a file, which is made on the first call, for its owner alone."""
    if not path.is_file():
        make_folder(path.parent)
        made = X25519PrivateKey.generate()
        with replacing(path) as partial:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(made.private_bytes_raw().hex() + "\n")
                file.flush()
                os.fsync(file.fileno())
    elif path.stat().st_mode & 0o077:
        raise InputError(f"{path} can be read by others: chmod 600 {path}")
    key = X25519PrivateKey.from_private_bytes(_digits(path))
    with replacing(path.with_suffix(".pub")) as partial:
        partial.write_text(public_digits(key) + "\n", "ascii")
    return key


def public_digits(key: X25519PrivateKey) -> str:
    """Return the public half in hexadecimal digits."""
    return key.public_key().public_bytes_raw().hex()


def read_public(path: Path) -> str:
    """Return the public key in a file, in hexadecimal digits."""
    return _digits(path).hex()


def _digits(path: Path) -> bytes:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the key {path}: {error}") from None
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise InputError(
            f"{path} is not a key for masks: such a key has 64 hexadecimal digits, as in "
            "masks.pub, which codedfedl federate helper makes"
        )
    return bytes.fromhex(text)
