"""Verbs about online producers and consumers."""

import re
from pathlib import Path
from typing import Final

from goddard.cli.mqadmin.call import Call
from goddard.cli.mqadmin.java_text import version_text
from goddard.cli.mqadmin.messaging.running_info import (
    have_same_subscriptions,
    info_text,
    queue_problems,
)
from goddard.cli.terminal.mistakes import FailedError, one_line
from goddard.errors import GoddardError
from goddard.protocol.bodies_client import ConsumerRunningInfo

_STATUS: Final = "%-10s %-40s %-20s %s"
_CONSUMER: Final = "%-36s %-22s %-10s %s"


async def consumer_connection(call: Call) -> None:
    broker = await call.broker() if "b" in call.options else None
    online = await call.admin.consumer_connections(call.options.text("g"), broker=broker)
    call.row(_CONSUMER, "#ClientId", "#ClientAddr", "#Language", "#Version")
    for one in online.connection_set:
        version = version_text(one.version)
        call.row(_CONSUMER, one.client_id, one.client_addr, one.language, version)
    call.line()
    call.line("Below is subscription:")
    call.row("%-20s %s", "#Topic", "#SubExpression")
    for _, data in sorted(online.subscription_table.items()):
        call.row("%-20s %s", data.topic, data.sub_string)
    call.line()
    call.line(f"ConsumeType: {online.consume_type}")
    call.line(f"MessageModel: {online.message_model}")
    call.line(f"ConsumeFromWhere: {online.consume_from_where}")


async def producer_connection(call: Call) -> None:
    options = call.options
    found = await call.admin.producer_connections(options.text("g"), options.text("t"))
    for number, one in enumerate(found, 1):
        version = version_text(one.version)
        call.row(
            "%04d  %-32s %-22s %-8s %s",
            number,
            one.client_id,
            one.client_addr,
            one.language,
            version,
        )


async def producers(call: Call) -> None:
    for group, clients in (await call.admin.producers(await call.broker())).items():
        if not clients:
            call.line(f"producer group ({group}) instances are empty")
        for one in clients:
            call.line(
                f"producer group ({group}) instance : clientId={one.client_id},"
                f"remoteIP={one.remote_ip}, language={one.language}, version={one.version}, "
                f"lastUpdateTimestamp={one.last_update_timestamp}"
            )


async def consumer_status(call: Call) -> None:
    options, group = call.options, call.options.text("g")
    with_stacks = "s" in options
    if "i" in options:
        info = await call.admin.running_info(group, options.text("i"), with_stacks=with_stacks)
        call.text(info_text(info))
        return
    broker = await call.broker() if "b" in options else None
    online = await call.admin.consumer_connections(group, broker=broker)
    now_ms = call.admin.clock.now_ms()
    infos: dict[str, ConsumerRunningInfo] = {}
    failures: dict[str, GoddardError] = {}
    call.row(_STATUS, "#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile")
    for one in sorted(online.connection_set, key=lambda connection: connection.client_id):
        try:
            info = await call.admin.running_info(group, one.client_id, with_stacks=with_stacks)
        except GoddardError as error:
            failures[one.client_id] = error
            continue
        infos[one.client_id] = info
        path = _write_info(now_ms, one.client_id, info)
        call.row(_STATUS, len(infos), one.client_id, version_text(one.version), path)
    if infos:
        _print_health(call, infos, now_ms)
    if failures:
        reasons = "; ".join(f"{client}: {error}" for client, error in failures.items())
        raise FailedError(one_line(reasons))


def _write_info(now_ms: int, client_id: str, info: ConsumerRunningInfo) -> Path:
    """Write the state of a consumer into a folder of the working directory, as Java's tool does."""
    path = Path(str(now_ms)) / re.sub(r"[^0-9A-Za-z@.#:_-]", "_", client_id)
    path.parent.mkdir(exist_ok=True)
    path.write_text(info_text(info), encoding="utf-8")
    return path


def _print_health(call: Call, infos: dict[str, ConsumerRunningInfo], now_ms: int) -> None:
    if not have_same_subscriptions(infos, now_ms):
        call.text("\n\nWARN: Different subscription in the same group of consumer!!!\n")
        return
    call.text("\n\nSame subscription in the same group of consumer")
    call.text("\n\nRebalance OK\n")
    for client_id, info in infos.items():
        for problem in queue_problems(client_id, info, now_ms):
            call.line(problem)
