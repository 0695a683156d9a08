"""Request signatures: a shared secret proves who sent a request.

The signed content is the values of all header fields except the signature, sorted by field name,
then the body. The signature is the base64 of its HMAC-SHA1 under the secret key.
"""

import hmac
from base64 import b64encode
from typing import Final

from goddard.protocol.frame import RemotingCommand

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"

# Clients up to RocketMQ 4.9.3 (version 399) add this field after signing.
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_LAST_VERSION_WITH_UNSIGNED_KEY: Final = 399


def _java_order(name: str) -> bytes:
    """Sort key of Java strings: UTF-16 units, which sort differently above U+FFFF."""
    return name.encode("utf-16-be", "surrogatepass")


def signed_content(command: RemotingCommand) -> bytes:
    """The bytes that a signature covers."""
    fields = command.fields
    excluded = {SIGNATURE}
    if command.version <= _LAST_VERSION_WITH_UNSIGNED_KEY:
        excluded.add(_UNIQUE_KEY_QUERY)
    names = sorted(fields, key=None if "".join(fields).isascii() else _java_order)
    text = "".join(fields[name] for name in names if name not in excluded)
    return text.encode("utf-8", "replace") + command.body


def signature(content: bytes, secret_key: str) -> str:
    return b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def sign(
    command: RemotingCommand, access_key: str, secret_key: str, token: str | None = None
) -> None:
    """Add the credentials to a request. They cover all other fields and the body: sign last."""
    fields = command.ext_fields
    if fields is None:
        fields = command.ext_fields = {}
    fields[ACCESS_KEY] = access_key
    if token is not None:
        fields[SECURITY_TOKEN] = token
    fields[SIGNATURE] = signature(signed_content(command), secret_key)


def verify(command: RemotingCommand, secret_key: str) -> bool:
    """Whether the signature of the request was made with this secret."""
    given = command.fields.get(SIGNATURE)
    if given is None:
        return False
    expected = signature(signed_content(command), secret_key)
    # Compare bytes: compare_digest rejects non-ASCII text, which a peer may send.
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))
