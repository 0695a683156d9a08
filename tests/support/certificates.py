"""Self-signed certificates for 127.0.0.1, for TLS tests."""

import datetime as dt
import hashlib
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path

    @property
    def fingerprint(self) -> str:
        """The SHA-256 fingerprint of the current certificate file."""
        encoded = ssl.PEM_cert_to_DER_cert(self.certificate.read_text())
        return hashlib.sha256(encoded).hexdigest()


def make_identity(folder: Path, name: str, password: bytes | None = None) -> Identity:
    """Create a certificate; it replaces the one with this name in this folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    identity = Identity(folder / f"{name}.pem", folder / f"{name}.key")
    identity.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    identity.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    return identity
