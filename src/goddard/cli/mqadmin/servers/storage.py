"""Verbs about containers, cold data, read-ahead, RocksDB and log files."""

import json
from pathlib import Path
from typing import Any, Final

from goddard.cli.mqadmin.call import Call
from goddard.cli.mqadmin.java_text import message_text, pretty_json, seconds_text
from goddard.cli.mqadmin.options import Options
from goddard.cli.mqadmin.servers.brokers import titled_brokers
from goddard.cli.terminal.mistakes import FailedError, WrongUsageError
from goddard.client.admin.requests import broker_addresses
from goddard.client.message import ReceivedMessage
from goddard.errors import ConfigError, GoddardError, ProtocolError
from goddard.protocol.record import iter_records

_MONTH_MS: Final = 30 * 24 * 60 * 60 * 1000
_TABLES: Final = ("topics", "subscriptionGroups", "consumerOffsets")
_CHECK_FAILED: Final = 3
_MODES: Final = ("0", "1")
_ENGINES: Final = ("R", "F")
_IDENTITY_PARTS: Final = 3
_NO_ROCKSDB: Final = (
    "RocksDB files cannot be read by this command; give -n and -c, or -b, and the brokers write "
    "the tables as JSON"
)


# --- Containers -----------------------------------------------------------------------------------


async def add_broker(call: Call) -> None:
    address = call.options.text("c")
    await call.admin.add_broker(address, call.options.text("b"))
    call.line(f"add broker to {address} success")


async def remove_broker(call: Call) -> None:
    address, identity = call.options.text("c"), call.options.text("b")
    parts = [part.strip() for part in identity.split(":")]
    if len(parts) != _IDENTITY_PARTS or not parts[2].isdecimal():
        raise call.options.wrong("b", f"takes CLUSTER:BROKER:ID, not {identity!r}")
    await call.admin.remove_broker(address, parts[0], parts[1], int(parts[2]))
    call.line(f"remove broker from {address} success")


# --- Cold data ------------------------------------------------------------------------------------


async def get_cold_data_flow(call: Call) -> None:
    for address, title in (await titled_brokers(call)).items():
        answer = await call.admin.cold_data_flow(address)
        call.line(f" {title}")
        if not answer:
            call.line(f"Broker[{address}] has no cold ctr table !")
            continue
        found = _object_of(answer, address)
        for runtime in (found.get("runtimeTable") or {}).values():
            for name in ("lastColdReadTime", "createTime"):
                time_ms = int(runtime.pop(f"{name}Mills", 0))
                runtime[f"{name}Format"] = seconds_text(time_ms)
        call.line(pretty_json(found))


def _object_of(text: str, address: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"{address} answered with something else than JSON") from error
    if not isinstance(found, dict):
        raise ProtocolError(f"{address} answered with something else than a JSON object")
    return found


async def update_cold_data_flow(call: Call) -> None:
    limits = {call.options.text("g"): call.options.number("v")}
    change = call.admin.update_cold_data_flow(limits, **call.place())
    await call.changed(change, lambda one: f"updateColdDataFlowCtrGroupConfig success, {one}")


async def remove_cold_data_flow(call: Call) -> None:
    change = call.admin.remove_cold_data_flow(call.options.text("g"), **call.place())
    await call.changed(change, lambda one: f"remove broker cold read threshold success, {one}")


# --- Commit log and timers ------------------------------------------------------------------------


async def set_read_ahead_mode(call: Call) -> None:
    mode = call.options.choice("m", _MODES)
    for address, title in (await titled_brokers(call)).items():
        remark = await call.admin.set_broker_read_ahead_mode(address, int(mode))
        call.line(f" {title}")
        call.line(f"commitLog set readAhead mode rstStr{remark}")


async def switch_timer_engine(call: Call) -> None:
    engine = call.options.choice("e", _ENGINES)
    change = call.admin.switch_timer_engine(engine, **call.place())
    await call.changed(change, lambda one: f"switchTimerEngine to {engine} success, {one}")


# --- RocksDB --------------------------------------------------------------------------------------


async def rocksdb_config_to_json(call: Call) -> None:
    options = call.options
    kinds = options.words("t", ";") or list(_TABLES)
    for kind in kinds:
        if kind not in _TABLES:
            raise options.wrong("t", f"takes {', '.join(_TABLES)}, not {kind!r}")
    if "p" in options and not {"n", "b"} & options.given:
        raise FailedError(_NO_ROCKSDB)
    if "n" in options and "c" not in options:
        raise WrongUsageError("-n needs -c (--cluster)")
    if "n" in options:
        call.line("Use [rpc mode] call all brokers in cluster to export to json file ")
    else:
        call.line("Use [rpc mode] call broker to export to json file ")

    async def export(address: str) -> None:
        await call.admin.export_rocksdb_config(address, kinds)

    if "c" in options:
        addresses = list(await broker_addresses(call.admin, cluster=options.text("c")))
    else:
        addresses = await call.masters()
    for address in addresses:
        await export(address)
    call.line("broker export done.")


def export_rocksdb_metadata(options: Options) -> None:
    """Always fails: RocksDB files cannot be read."""
    path = Path(options.text("p"))
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder")
    raise FailedError(_NO_ROCKSDB)


async def check_rocksdb_progress(call: Call) -> None:
    options = call.options
    since_ms = options.number("cf", call.admin.clock.now_ms() - _MONTH_MS)
    for place in await call.admin.brokers(cluster=options.text("c")):
        if not place.is_master:
            continue
        found = await call.admin.rocksdb_progress(
            place.address, options.text("t"), since_ms=since_ms
        )
        if found.check_status == _CHECK_FAILED:
            raise FailedError(f"{place.name} check error: {found.check_result}")
        call.line(f"{place.name} check doing, please wait and get the result from log... ")


async def export_pop_records(call: Call) -> None:
    options = call.options
    only_lists = options.boolean("d")
    if "b" in options:
        address = await call.broker()
        places = {address: (await call.admin.broker_config(address)).get("brokerName", "")}
    elif "c" in options:
        found = await call.admin.brokers(cluster=options.text("c"))
        places = {place.address: place.name for place in found}
    else:
        raise WrongUsageError("-b (--brokerAddr) or -c (--clusterName) must be given")
    failures: dict[str, GoddardError] = {}
    for address, name in places.items():
        if not only_lists:
            try:
                await call.admin.export_pop_records(address)
            except GoddardError as error:
                failures[address] = error
                continue
        dry = "true" if only_lists else "false"
        call.line(f"Export broker records, brokerName={name}, brokerAddr={address}, dryRun={dry}")
    if failures:
        raise FailedError("; ".join(f"{one}: {error}" for one, error in failures.items()))


# --- Files ----------------------------------------------------------------------------------------


def dump_compaction_log(options: Options) -> None:
    """Print the messages of a log file up to the first place that is not a message."""
    if "f" not in options:
        raise WrongUsageError("-f (--file) must be given")
    path = Path(options.text("f"))
    if path.is_dir():
        raise ConfigError(f"{path} is a folder, not a file")
    data = memoryview(path.read_bytes())
    position = 0
    while position + 4 <= len(data):
        size = int.from_bytes(data[position : position + 4], "big", signed=True)
        if size <= 0 or position + size > len(data):
            break
        try:
            (record,) = iter_records(bytes(data[position : position + size]))
        except (ProtocolError, ValueError):
            break
        one = ReceivedMessage.from_record(record, "")
        print(message_text(one, one.properties, with_body=False))
        position += size
