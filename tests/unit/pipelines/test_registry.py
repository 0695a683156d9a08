"""Schemas by id: an HTTP registry, a folder, and Avro bodies that name their schema."""

import io
import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest
from typing_extensions import override

from goddard.errors import ConfigError
from goddard.pipelines.config import parse_job
from goddard.pipelines.parse import AvroDecoder
from goddard.pipelines.registry import RegistryError, SchemaRegistry, schema_id


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": list(fields)}


ID = {"name": "id", "type": "int"}
OLD = record(ID)
NEW = record(ID, {"name": "city", "type": "string"})
READER = record({"name": "id", "type": "long"}, {"name": "city", "type": "string", "default": "?"})


def body(number: int, schema: Any, **fields: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), fields)
    return struct.pack(">bI", 0, number) + stream.getvalue()


class Answers(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        answers = {
            "/schemas/ids/1": (200, json.dumps({"schema": json.dumps(OLD)})),
            "/schemas/ids/2": (200, json.dumps({"schema": json.dumps(NEW)})),
            "/schemas/ids/3": (500, ""),
            "/schemas/ids/4": (200, "{}"),
            "/schemas/ids/5": (200, json.dumps({"schema": "{"})),
        }
        status, text = answers.get(self.path, (404, ""))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    Answers.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join(10)


def test_bodies_of_several_schemas_are_read_as_one(url: str) -> None:
    decode = AvroDecoder(READER, 0, "problem", url)
    for _ in range(3):
        assert decode(body(1, OLD, id=5)) == {"id": 5, "city": "?"}
        assert decode(body(2, NEW, id=6, city="x")) == {"id": 6, "city": "x"}
    # Each schema was asked for once.
    assert sorted(Answers.asked) == ["/schemas/ids/1", "/schemas/ids/2"]


def test_bodies_without_a_known_schema_fail_only_their_row(url: str) -> None:
    decode = AvroDecoder(READER, 0, "problem", url)
    assert decode(body(9, OLD, id=5)) == {"problem": "the schema 9 is not in the registry"}
    for wrong in (b"", None, b"\x01\0\0\0\1x", b"\0\0\0"):
        assert decode(wrong) == {"problem": "the body has no schema id"}
    assert decode(b"\0\0\0\0\2\xff") == {"problem": "the body is no AVRO of the schema"}


def test_failing_registry_fails_the_task(url: str) -> None:
    registry = SchemaRegistry(url)
    for number, words in {3: "500", 4: "no schema in the answer", 5: "is no Avro schema"}.items():
        with pytest.raises(RegistryError, match=words):
            registry.schema(number)
    with pytest.raises(RegistryError, match="schema registry"):
        SchemaRegistry("http://127.0.0.1:1").schema(1)


def test_folder_of_schemas(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text(json.dumps(OLD))
    registry = SchemaRegistry(str(tmp_path))
    assert registry.schema(7)["fields"] == [ID]
    assert registry.schema(8) is None


def test_schema_ids() -> None:
    assert schema_id(b"\0\0\0\1\0rest") == 256
    assert schema_id(b"\0\xff\xff\xff\xff") == 2**32 - 1
    assert schema_id(b"\1\0\0\0\1") is None


def test_registry_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(READER))
    (tmp_path / "schemas").mkdir()

    def job(**parse: Any) -> Any:
        given = {"format": "avro", "schemaFile": "order.avsc"} | parse
        source = {"nameServers": "h:1", "subscribe": "t"}
        return parse_job(
            {"name": "x", "source": source, "parse": given, "sink": {"path": "t"}}, folder=tmp_path
        )

    assert job(registry="schemas").parse.registry == str(tmp_path / "schemas")
    assert job(registry="http://h:8081").parse.registry == "http://h:8081"
    with pytest.raises(ConfigError, match="is no folder, and no URL"):
        job(registry="nowhere")
    with pytest.raises(ConfigError, match="registry is for avro, without skipBytes"):
        job(registry="schemas", skipBytes=5)
