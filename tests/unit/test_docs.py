"""Every name in ``docs/NAMES.md`` exists; ``docs/CONFIGURATION.md`` has every property."""

import dataclasses
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from goddard.broker.properties import JAVA_DEFAULTS
from goddard.broker.settings import BrokerConfig
from goddard.config import settings_of
from goddard.store.config import StoreConfig

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "goddard"
NAMES = ROOT / "docs" / "NAMES.md"
CONFIGURATION = ROOT / "docs" / "CONFIGURATION.md"
PLACES = (
    "goddard|core|protocol|transport|nameserver|broker|client|store|replication|spark|pipelines|cli|"
    "testing|config|environment|files|logs"
)


def named_here() -> list[str]:
    rows = [line for line in NAMES.read_text().splitlines() if line.startswith("| ")]
    found: set[str] = set()
    for row in rows:
        if "planned" not in row:
            ours = row.split("|")[2]
            found.update(re.findall(rf"`((?:{PLACES})(?:\.\w+)+)`", ours))
    return sorted(found)


@pytest.mark.parametrize("name", named_here())
def test_each_name_exists(name: str) -> None:
    thing: object = importlib.import_module("goddard")
    for part in name.removeprefix("goddard.").split("."):
        if isinstance(thing, ModuleType) and not hasattr(thing, part):
            importlib.import_module(f"{thing.__name__}.{part}")
        thing = getattr(thing, part)


def test_every_package_is_named() -> None:
    folder = Path(importlib.import_module("goddard").__path__[0])
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert {name.removeprefix("goddard.").split(".")[0] for name in named_here()} >= packages


def test_every_property_of_a_broker_is_listed_where_it_belongs() -> None:
    known = set(settings_of(BrokerConfig)) | set(JAVA_DEFAULTS)
    of_store: set[str] = {
        item.metadata["wire"]
        for item in dataclasses.fields(StoreConfig)
        if item.metadata.get("wire")
    }
    read_elsewhere = {"enableMixedMessageType", "enableSplitMetadata", "splitMetadataSize"}
    counting = set(settings_of(BrokerConfig)) | of_store | read_elsewhere

    text = CONFIGURATION.read_text()
    table, without = text.split("## Properties without effect")
    rows = re.findall(r"^\| `(\w[\w.]*)` \|(?: `([^`]*)`)? *\|", table, re.MULTILINE)
    assert [name for name, _ in rows] == sorted(counting, key=str.lower)
    assert re.findall(r"`(\w+)`[,.]", without) == sorted(known - counting, key=str.lower)
    for name, default in rows:
        assert default == JAVA_DEFAULTS.get(name, default)


def test_each_field_of_the_configuration_is_used() -> None:
    """A field that no code reads belongs to the properties without effect."""
    sources = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    fields = {setting.field for setting in settings_of(BrokerConfig).values()}
    fields.remove("rocketmq_home")  # read as a property, before the broker is created
    assert [name for name in sorted(fields) if not re.search(rf"\.{name}\b", sources)] == []
