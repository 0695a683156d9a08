"""Verbs about replication and controllers."""

from goddard.cli.mqadmin.call import Call, in_parallel
from goddard.cli.mqadmin.java_text import boolean, millis_text, text_or_null
from goddard.cli.terminal.mistakes import WrongUsageError
from goddard.client.admin.requests import broker_addresses
from goddard.client.errors import BrokerNotFoundError
from goddard.protocol.bodies_admin import HaStatus, ReplicaIdentity

_SLAVES = "%-32s  %-16s %16s %16s %16s %16s"


async def reset_master_flush_offset(call: Call) -> None:
    if not {"b", "o"} <= call.options.given:
        raise WrongUsageError("-b (--brokerAddr) and -o (--offset) must be given")
    offset = call.options.number("o", least=0)
    await call.admin.reset_master_flush_offset(await call.broker(), offset)
    call.line(f"reset master flush offset to {offset} success")


async def ha_status(call: Call) -> None:
    async def once() -> None:
        addresses = await call.masters()
        found = await in_parallel(addresses, call.admin.ha_status)
        for address, status in zip(addresses, found, strict=True):
            _print_ha(call, address, status)

    await call.repeat(once)


def _print_ha(call: Call, address: str, status: HaStatus) -> None:
    call.line()
    if status.master:
        call.line(f"#MasterAddr\t{address}")
        call.line(f"#MasterCommitLogMaxOffset\t{status.master_commit_log_max_offset}")
        call.line(f"#SlaveNum\t{len(status.ha_connection_info)}")
        call.line(f"#InSyncSlaveNum\t{status.in_sync_slave_nums}")
        columns = ("#SlaveAddr", "#SlaveAckOffset", "#Diff", "#TransferSpeed(KB/s)", "#Status")
        call.row(_SLAVES, *columns, "#TransferFromWhere")
        for one in status.ha_connection_info:
            call.row(
                _SLAVES,
                one.addr,
                one.slave_ack_offset,
                one.diff,
                f"{one.transferred_byte_in_second / 1024:.2f}",
                "OK" if one.in_sync else "Fall Behind",
                one.transfer_from_where,
            )
        return
    client = status.ha_client_runtime_info
    call.line(f"#MasterAddr\t{client.master_addr}")
    call.line(f"#CommitLogMaxOffset\t{client.max_offset}")
    call.line(f"#TransferSpeed(KB/s)\t{client.transferred_byte_in_second / 1024:.2f}")
    call.line(f"#LastReadTime\t{millis_text(client.last_read_timestamp)}")
    call.line(f"#LastWriteTime\t{millis_text(client.last_write_timestamp)}")
    call.line(f"#MasterFlushOffset\t{client.master_flush_offset}")


async def get_broker_epoch(call: Call) -> None:
    options = call.options

    async def once() -> None:
        if "b" in options:
            addresses = await broker_addresses(
                call.admin, broker=options.text("b"), with_replicas=True
            )
        else:
            addresses = await broker_addresses(
                call.admin, cluster=options.text("c"), with_replicas=True
            )
        found = await in_parallel(addresses, call.admin.broker_epochs)
        for address, cache in zip(addresses, found, strict=True):
            call.line(f"\n#clusterName\t{cache.cluster_name}")
            call.line(f"#brokerName\t{cache.broker_name}")
            call.line(f"#brokerAddr\t{address}")
            call.text(f"#brokerId\t{cache.broker_id}")
            for number, entry in enumerate(cache.epoch_list, 1):
                is_last = number == len(cache.epoch_list)
                end = cache.max_offset if is_last else entry.end_offset
                call.text(
                    f"\n#Epoch: EpochEntry{{epoch={entry.epoch}, "
                    f"startOffset={entry.start_offset}, endOffset={end}}}"
                )
            call.line()

    await call.repeat(once)


async def get_sync_state_set(call: Call) -> None:
    options = call.options
    controller = options.words("a", ";")[0]

    async def once() -> None:
        if "b" in options:
            names = [options.text("b")]
        elif "c" in options:
            places = await call.admin.brokers(cluster=options.text("c"))
            names = sorted({place.name for place in places})
        else:
            raise WrongUsageError("-b (--brokerName) or -c (--clusterName) must be given")
        answer = await call.admin.sync_state_sets(controller, names)
        if not answer.replicas_info_table:
            raise BrokerNotFoundError(names[0])
        for name, info in answer.replicas_info_table.items():
            call.line(f"\n#brokerName\t{name}")
            call.line(f"#MasterBrokerId\t{text_or_null(info.master_broker_id)}")
            call.line(f"#MasterAddr\t{text_or_null(info.master_address)}")
            call.line(f"#MasterEpoch\t{text_or_null(info.master_epoch)}")
            call.line(f"#SyncStateSetEpoch\t{text_or_null(info.sync_state_set_epoch)}")
            call.line(f"#SyncStateSetNums\t{len(info.in_sync_replicas)}")
            for one in info.in_sync_replicas:
                call.line(f"\nInSyncReplica:\t{replica_text(one)}")
            for one in info.not_in_sync_replicas:
                call.line(f"\nNotInSyncReplica:\t{replica_text(one)}")

    await call.repeat(once)


def replica_text(one: ReplicaIdentity) -> str:
    return (
        f"ReplicaIdentity{{brokerName='{text_or_null(one.broker_name)}', "
        f"brokerId={text_or_null(one.broker_id)}, "
        f"brokerAddress='{text_or_null(one.broker_address)}', alive={boolean(one.alive)}}}"
    )


async def get_controller_metadata(call: Call) -> None:
    found = await call.admin.controller_metadata(call.options.text("a"))
    call.line(f"\n#ControllerGroup\t{text_or_null(found.group)}")
    call.line(f"#ControllerLeaderId\t{text_or_null(found.controller_leader_id)}")
    call.line(f"#ControllerLeaderAddress\t{text_or_null(found.controller_leader_address)}")
    for peer in (found.peers or "").split(";"):
        if peer:
            call.line(f"#Peer:\t{peer}")


async def get_controller_config(call: Call) -> None:
    configs = await call.admin.controller_config(call.options.words("a", ";"))
    for address, config in configs.items():
        call.line(f"============{address}============")
        for name, value in sorted(config.items()):
            call.line(f"{name:<50}=  {value}")


async def update_controller_config(call: Call) -> None:
    name, value = call.options.text("k"), call.options.text("v")
    addresses = call.options.words("a", ";")
    await call.admin.update_controller_config(addresses, {name: value})
    call.line(f"update controller config success![{', '.join(addresses)}]")
    call.line(f"{name} : {value}")


async def elect_master(call: Call) -> None:
    options = call.options
    cluster, name = options.text("c"), options.text("bn")
    elected = await call.admin.elect_master(
        options.text("a"), cluster, name, options.number("b", least=0)
    )
    call.line(f"\n#ClusterName\t{cluster}")
    call.line(f"#BrokerName\t{name}")
    call.line(f"#BrokerMasterAddr\t{text_or_null(elected.master_address)}")
    call.line(f"#MasterEpoch\t{text_or_null(elected.master_epoch)}")
    call.line(f"#SyncStateSetEpoch\t{text_or_null(elected.sync_state_set_epoch)}")
    for number, address in sorted(elected.members.broker_addrs.items()):
        call.line(f"\t#Broker\t{number}\t{address}")


async def clean_broker_metadata(call: Call) -> None:
    options, name = call.options, call.options.text("bn")
    if "l" not in options and not options.text("c"):
        raise WrongUsageError("-c (--clusterName) must be given without -l (--cleanLivingBroker)")
    ids = None
    if "b" in options:
        parts = options.words("b", ";")
        if not all(part.isdecimal() for part in parts):
            raise options.wrong("b", f"takes ids such as 1;2;3, not {options.text('b')!r}")
        ids = [int(part) for part in parts]
    await call.admin.clean_broker_data(
        options.text("a"),
        options.text("c"),
        name,
        broker_ids=ids,
        even_if_alive="l" in options,
    )
    call.line(f"clear broker {name} metadata from controller success! ")
