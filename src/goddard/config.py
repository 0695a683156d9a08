"""Configuration: Java's properties format, settings of any daemon, and those of a name server.

Property names are RocketMQ's, so an existing ``namesrv.conf`` works unchanged. A property without
effect here (thread counts of Java's pools) is accepted, stored and returned.

An update over the network may never set a file, a folder, a home, a listening address or a command
(``is_protected``): only the configuration file and the command line can.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, get_type_hints

from goddard.errors import ConfigError


class ProtectedPropertyError(ConfigError):
    """A peer tried to set a property that may not be set over the network."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name[:80]} may not be set over the network, nor may anything that names a file, a "
            "folder, a home, an address or a command; set it in the configuration file and restart"
        )


# The maximum size of a properties file.
MAX_PROPERTIES_BYTES: Final = 1024 * 1024
# The maximum size of an update over the network, which is parsed on the loop; all settings
# together have a few KiB.
MAX_UPDATE_BYTES: Final = 64 * 1024

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK: Final = " \t\f"
_WRITTEN_ESCAPES: Final = str.maketrans(
    {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
)
_WINDOWS_PATH: Final = re.compile(r"(?m)^([^#!=:\r\n]+[=:][ \t]*)([A-Za-z]:\\(?!\\).*)$")
_HEX: Final = re.compile(r"[0-9a-fA-F]{4}")


def parse_properties(text: str) -> dict[str, str]:
    """Read ``java.util.Properties`` text: comments, continued lines, escapes; the last key wins."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        end = 0
        while end < len(line) and line[end] not in "=:" + _BLANK:
            end += 2 if line[end] == "\\" else 1
        start = end
        while start < len(line) and line[start] in _BLANK:
            start += 1
        if start < len(line) and line[start] in "=:":
            start += 1
            while start < len(line) and line[start] in _BLANK:
                start += 1
        properties[_unescape(line[:end])] = _unescape(line[start:])
    return properties


def keep_windows_paths(text: str) -> str:
    """Double the single backslashes of values such as ``D:\\RocketMQ\\store``.

    Java reads them as escapes and drops them. Values with doubled backslashes are unchanged.
    """
    return _WINDOWS_PATH.sub(lambda line: line[1] + line[2].replace("\\", "\\\\"), text)


def _logical_lines(text: str) -> Iterator[str]:
    continued = ""
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(_BLANK)
        if not continued and (not line or line[0] in "#!"):
            continue
        trailing = len(line) - len(line.rstrip("\\"))
        if trailing % 2:
            # An odd number of backslashes at the end continues the line.
            continued += line[:-1]
            continue
        yield continued + line
        continued = ""
    if continued:
        yield continued


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            parts.append(char if char != "\\" else "")
            continue
        escaped = text[position]
        position += 1
        if escaped != "u":
            parts.append(_ESCAPES.get(escaped, escaped))
            continue
        digits = text[position : position + 4]
        if not _HEX.fullmatch(digits):
            raise ConfigError(f"malformed \\uxxxx escape: \\u{digits}")
        parts.append(chr(int(digits, 16)))
        position += 4
    return "".join(parts)


def format_properties(properties: Mapping[str, str]) -> str:
    """Format as sorted ``key=value`` lines; parsing them gives the same properties.

    Java does not escape values, so a line break in a value becomes another property at the next
    start; here such characters are escaped. Other text is written as in Java.
    """
    lines = []
    for key in sorted(properties):
        value = properties[key].translate(_WRITTEN_ESCAPES)
        if value.startswith(" "):
            value = "\\" + value
        name = key.translate(_WRITTEN_ESCAPES)
        name = re.sub(r"([ =:])", r"\\\1", name)
        name = "\\" + name if name[:1] in ("#", "!") else name
        lines.append(f"{name}={value}\n")
    return "".join(lines)


def read_properties(path: Path) -> dict[str, str]:
    """Read a properties file; ConfigError says what is wrong and what to do."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PROPERTIES_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"the configuration file {path} cannot be read: {error.strerror}; "
            "give an existing, readable file to -c"
        ) from error
    if len(data) > MAX_PROPERTIES_BYTES:
        raise ConfigError(
            f"the configuration file {path} is larger than {MAX_PROPERTIES_BYTES} bytes"
        )
    try:
        return parse_properties(keep_windows_paths(data.decode("utf-8")))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the configuration file {path} is not UTF-8 text (byte {error.start}); save it as "
            "UTF-8 or write such characters as \\uXXXX"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"the configuration file {path}: {error}") from error


# Names that a peer may never set, besides names that contain one of the words below.
_PROTECTED_NAMES: Final = frozenset(
    {
        "bindaddress",
        "configblacklist",
        "configstorepath",
        "enablecontrollerinnamesrv",
        "kvconfigpath",
        "listenport",
        "namesrvaddr",
        "rocketmqhome",
    }
)
_PROTECTED_WORDS: Final = re.compile(
    r"path|dir|file|folder|home|script|command|cmd|exec(?!utor)|shell|tls|address|listen|store"
)


def is_protected(key: str, black_list: str = "") -> bool:
    """Whether a property may not be set over the network.

    Ignores letter case, blanks and punctuation: names that are similar to a protected one are
    protected, too, because no client has a good reason to send them.
    """
    plain = re.sub(r"[^a-z0-9]", "", key.lower())
    listed = {re.sub(r"[^a-z0-9]", "", name.lower()) for name in black_list.split(";")} - {""}
    return (
        not key.isascii()
        or plain in _PROTECTED_NAMES
        or plain in listed
        or _PROTECTED_WORDS.search(plain) is not None
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a Configuration, and how to parse its text."""

    name: str
    field: str
    kind: type
    low: int
    high: int

    def parse(self, text: str) -> str | int | bool:
        text = text.strip()
        if self.kind is bool:
            # Java reads everything except "true" as false; here a misspelt value is an error.
            if text.lower() not in ("true", "false"):
                raise ConfigError(f"{self.name}={text[:80]}: true or false is needed")
            return text.lower() == "true"
        if self.kind is int:
            if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
                raise ConfigError(f"{self.name}={text[:80]}: a whole number is needed")
            if not self.low <= int(text) <= self.high:
                raise ConfigError(
                    f"{self.name}={text}: a number from {self.low} to {self.high} is needed"
                )
            return int(text)
        return text


def _written(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def setting(default: Any, name: str, *, low: int = 0, high: int = 2**31 - 1) -> Any:
    """A field of a Configuration: its property name and, for a number, its range."""
    return field(default=default, metadata={"property": name, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Settings of a daemon with RocketMQ's names; ``unused_properties`` have no effect."""

    unused_properties: Mapping[str, str] = field(default_factory=dict)

    def properties(self) -> dict[str, str]:
        """All properties as text, by RocketMQ's names."""
        properties = dict(self.unused_properties)
        for known in settings_of(type(self)).values():
            value = getattr(self, known.field)
            if value is not None:
                properties[known.name] = _written(value)
        return properties

    def updated(self, properties: Mapping[str, str]) -> Self:
        """A copy with these properties; unknown names are added to ``unused_properties``."""
        settings = settings_of(type(self))
        changes: dict[str, Any] = {}
        unused = dict(self.unused_properties)
        for name, text in properties.items():
            known = settings.get(name)
            if known is None:
                unused[name] = text
            else:
                changes[known.field] = known.parse(text)
        return dataclasses.replace(self, **changes, unused_properties=unused)

    def updated_by_peer(self, properties: Mapping[str, str]) -> Self:
        """As ``updated``, for properties from the network: without protected and unknown names.

        Unknown names are ignored, as in Java. ConfigError names the first invalid property; then
        nothing is changed.
        """
        for name in properties:
            if self.protects(name):
                raise ProtectedPropertyError(name)
        for name, text in properties.items():
            if not text.isprintable():
                raise ConfigError(f"{name}: a value may not contain control characters")
        settings = settings_of(type(self))
        known = {
            name: text
            for name, text in properties.items()
            if name in settings or name in self.unused_properties
        }
        return self.updated(known)

    def protects(self, name: str) -> bool:
        """Whether peers may not set this property."""
        return is_protected(name)

    def changes_at_run_time(self, name: str) -> bool:
        """Whether a file of changed settings counts for this property at the next start."""
        return not self.protects(name)

    def known_names(self) -> frozenset[str]:
        """The names of the properties of Goddard and RocketMQ."""
        return frozenset(settings_of(type(self))) | frozenset(self.unused_properties)

    def unknown_names(self, names: Iterable[str]) -> list[str]:
        """The names that neither Goddard nor RocketMQ knows."""
        known = self.known_names()
        return [name for name in names if name not in known and not name.startswith("tls.")]

    def similar_name(self, unknown: str) -> str | None:
        """The known name that is most similar, if any is similar enough."""
        known = {name.lower(): name for name in sorted(self.known_names())}
        similar = difflib.get_close_matches(unknown.lower()[:80], known, n=1, cutoff=0.75)
        return known[similar[0]] if similar else None


_SETTINGS: Final[dict[type, Mapping[str, Setting]]] = {}


# A number without a default is shown only if it is set.
_KINDS: Final[Mapping[Any, type]] = {bool: bool, int: int, int | None: int}


def settings_of(configuration: type[Configuration]) -> Mapping[str, Setting]:
    """The settings of a configuration class, by property name."""
    if configuration in _SETTINGS:
        return _SETTINGS[configuration]
    kinds = get_type_hints(configuration)
    settings: dict[str, Setting] = {}
    for item in dataclasses.fields(configuration):
        if "property" in item.metadata:
            kind = kinds[item.name]
            name = item.metadata["property"]
            settings[name] = Setting(
                name=name,
                field=item.name,
                kind=_KINDS.get(kind, str),
                low=item.metadata["low"],
                high=item.metadata["high"],
            )
    _SETTINGS[configuration] = settings
    return settings


# Properties of RocketMQ 5.4's NamesrvConfig and NettyServerConfig without effect here: one event
# loop replaces Java's thread pools and semaphores.
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "clientRequestThreadPoolNums": "8",
    "clientRequestThreadPoolQueueCapacity": "50000",
    "clusterTest": "false",
    "defaultThreadPoolNums": "16",
    "defaultThreadPoolQueueCapacity": "10000",
    "enableControllerInNamesrv": "false",
    "enableShutdownGracefully": "false",
    "productEnvName": "center",
    "serverAsyncSemaphoreValue": "64",
    "serverCallbackExecutorThreads": "0",
    "serverNettyWorkerGroupEnable": "true",
    "serverOnewaySemaphoreValue": "256",
    "serverPooledByteBufAllocatorEnable": "true",
    "serverSelectorThreads": "3",
    "serverSocketRcvBufSize": "0",
    "serverSocketSndBufSize": "0",
    "serverWorkerThreads": "8",
    "shutdownWaitTimeSeconds": "30",
    "useEpollNativeSelector": "false",
    "writeBufferLowWaterMark": "0",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig(Configuration):
    """The configuration of a name server."""

    rocketmq_home: str | None = setting(None, "rocketmqHome")
    kv_config_path: str = setting("namesrv/kvConfig.json", "kvConfigPath")
    config_store_path: str = setting("namesrv/namesrv.properties", "configStorePath")
    config_black_list: str = setting(
        "configBlackList;configStorePath;kvConfigPath", "configBlackList"
    )
    bind_address: str = setting("0.0.0.0", "bindAddress")
    listen_port: int = setting(9876, "listenPort", high=65535)

    order_message_enable: bool = setting(False, "orderMessageEnable")
    return_order_topic_config_to_broker: bool = setting(True, "returnOrderTopicConfigToBroker")
    scan_interval_ms: int = setting(5000, "scanNotActiveBrokerInterval", low=10)
    unregister_queue_capacity: int = setting(3000, "unRegisterBrokerQueueCapacity", low=1)
    support_acting_master: bool = setting(False, "supportActingMaster")
    enable_all_topic_list: bool = setting(True, "enableAllTopicList")
    enable_topic_list: bool = setting(True, "enableTopicList")
    notify_min_broker_id_changed: bool = setting(False, "notifyMinBrokerIdChanged")
    need_wait_for_service: bool = setting(False, "needWaitForService")
    wait_seconds_for_service: int = setting(45, "waitSecondsForService")
    delete_topic_with_broker_registration: bool = setting(
        False, "deleteTopicWithBrokerRegistration"
    )

    idle_seconds: int = setting(120, "serverChannelMaxIdleTimeSeconds", low=1)
    backlog: int = setting(1024, "serverSocketBacklog", low=1)
    # 0 means the transport's default, as in Java.
    write_buffer_high_bytes: int = setting(0, "writeBufferHighWaterMark")

    unused_properties: Mapping[str, str] = field(default_factory=lambda: dict(WITHOUT_EFFECT))

    def protects(self, name: str) -> bool:
        return is_protected(name, self.config_black_list)
