import base64
import hashlib
import hmac

from goddard.protocol import acl
from goddard.protocol.frame import RemotingCommand, decode_frame, encode_frame


def test_signed_content() -> None:
    command = RemotingCommand(
        10, {"b": "2", "a": "1", "Signature": "old", "B": "0"}, b"body\xff", remark="not signed"
    )
    assert acl.signed_content(command) == b"012body\xff"
    command.body = memoryview(b"view")
    assert acl.signed_content(command) == b"012view"
    assert acl.signed_content(RemotingCommand(10)) == b""


def test_fields_are_signed_in_java_order() -> None:
    # In UTF-16 the surrogates of U+1F600 (D83D DE00) come before U+FFFD; in Python they do not.
    command = RemotingCommand(10, {"\ufffd": "last", "\U0001f600": "first"})
    assert acl.signed_content(command) == b"firstlast"


def test_unique_key_field_is_not_signed_by_old_clients() -> None:
    fields = {"_UNIQUE_KEY_QUERY": "true", "a": "1"}
    assert acl.signed_content(RemotingCommand(12, fields, version=399)) == b"1"
    assert acl.signed_content(RemotingCommand(12, fields, version=400)) == b"true1"


def test_sign_and_verify() -> None:
    command = RemotingCommand(10, {"topic": "\u4e2d"}, b"body")
    acl.sign(command, "key", "secret", "token")
    digest = hmac.new(b"secret", b"keytoken" + "\u4e2d".encode() + b"body", hashlib.sha1).digest()
    assert command.fields == {
        "topic": "\u4e2d",
        "AccessKey": "key",
        "SecurityToken": "token",
        "Signature": base64.b64encode(digest).decode(),
    }
    received = decode_frame(memoryview(encode_frame(command))[4:])
    assert acl.verify(received, "secret")
    assert not acl.verify(received, "Secret")


def test_verify_fails_after_any_change() -> None:
    command = RemotingCommand(10, None, b"body")
    acl.sign(command, "key", "secret")
    fields = command.fields
    assert acl.verify(command, "secret")
    for changed in (
        RemotingCommand(10, fields, b"bodY"),
        RemotingCommand(10, {**fields, "more": "1"}, b"body"),
        RemotingCommand(10, {**fields, "AccessKey": "other"}, b"body"),
        RemotingCommand(10, {**fields, "Signature": "\u4e2d"}, b"body"),
        RemotingCommand(10, {**fields, "Signature": "\ud800"}, b"body"),
        RemotingCommand(10, {**fields, "Signature": ""}, b"body"),
        RemotingCommand(10, {"AccessKey": "key"}, b"body"),
        RemotingCommand(10, None, b"body"),
    ):
        assert not acl.verify(changed, "secret")


def test_signing_is_idempotent() -> None:
    command = RemotingCommand(10, {"a": "1"})
    acl.sign(command, "key", "secret")
    once = dict(command.fields)
    acl.sign(command, "key", "secret")
    assert command.fields == once
