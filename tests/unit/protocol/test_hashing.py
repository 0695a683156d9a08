import subprocess
import sys
import zlib

import pytest

from goddard.protocol.hashing import (
    body_crc,
    crc32,
    index_hash,
    java_hash,
    tag_code,
)
from goddard.store.index.bulk_hashing import java_hashes

# Computed by Java's String.hashCode.
VECTORS = {
    "": 0,
    "a": 97,
    "TagA": 2598919,
    "polygenelubricants": -(2**31),
    "d\N{GRINNING FACE}": 1868999,
    "hello": 99162322,
}


def reference_hash(text: str) -> int:
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(raw[::2], raw[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) % 2**32
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(("text", "expected"), VECTORS.items())
def test_java_hash(text: str, expected: int) -> None:
    assert java_hash(text) == expected == reference_hash(text)
    assert tag_code(text) == expected


@pytest.mark.parametrize("length", [1, 63, 64, 65, 1000, 32767])
@pytest.mark.parametrize("letter", ["z", "\xff", "\u4e2d", "\N{GRINNING FACE}", "\ud800"])
def test_java_hash_of_any_length_and_script(letter: str, length: int) -> None:
    assert java_hash(letter * length) == reference_hash(letter * length)


def test_many_at_once() -> None:
    texts = ["", *VECTORS, "", "x" * 300, "\u4e2d\u6587", ""]
    assert java_hashes(texts).tolist() == [reference_hash(text) for text in texts]
    ascii_texts = ["", "TopicA#k1", "", "TopicA#k22", ""]
    assert java_hashes(ascii_texts).tolist() == [reference_hash(text) for text in ascii_texts]
    assert java_hashes([]).tolist() == []
    assert java_hashes(["", ""]).tolist() == [0, 0]


def test_index_hash_is_never_negative() -> None:
    assert index_hash("TagA") == 2598919
    assert index_hash("polygenelubricants") == 0
    negative = "TopicA#key-1"
    assert java_hash(negative) < 0
    assert index_hash(negative) == -java_hash(negative)


def test_crc32() -> None:
    assert crc32(b"123456789") == 0xCBF43926
    assert body_crc(b"123456789") == 0xCBF43926 & 0x7FFFFFFF
    assert body_crc(b"hello") == 0x3610A686
    assert body_crc(b"") == 0
    for body in (b"x" * 100, bytes(range(256)) * 50):
        assert body_crc(memoryview(body)) == zlib.crc32(body) & 0x7FFFFFFF


def test_crc32_without_the_fast_library() -> None:
    code = (
        "import sys; sys.modules['isal'] = None; sys.modules['isal.isal_zlib'] = None\n"
        "import zlib\n"
        "from goddard.protocol import hashing\n"
        "assert hashing.crc32 is zlib.crc32\n"
        "assert hashing.body_crc(b'hello') == 0x3610A686\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
