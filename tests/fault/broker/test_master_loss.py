"""The master of a pair is killed and its disk is lost, several times: the slave has every message.

Both brokers flush synchronously, and the master waits for the slave. GODDARD_LOSS_CYCLES is the
number of masters that are lost; by default a few.
"""

import asyncio
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.protocol.headers.cluster import ChangeRoleRequest
from goddard.testing.cluster import Cluster, Daemon
from goddard.testing.process import wait_until
from goddard.testing.wire import ask
from goddard.transport.client import Client, ClientOptions
from tests.fault.broker.test_kill import QUEUES, TOPIC, reach
from tests.support.load import KeyedReader, KeyedSender
from tests.support.replicas import replication

CYCLES = int(os.environ.get("GODDARD_LOSS_CYCLES", "2"))
PAIR = {
    "brokerName": "pair",
    "brokerRole": "SYNC_MASTER",
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(1 << 20),
}


def promote(broker: Daemon) -> None:
    """Without force: the broker itself checks that nothing can be lost."""
    header = ChangeRoleRequest(master_address=broker.address)
    command = RemotingCommand(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header.encode())
    answer = ask(broker.address, command, timeout=20)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def make_slave(broker: Daemon, broker_id: int) -> None:
    """Start a broker that was the master as a slave, with nothing."""
    shutil.rmtree(broker.home / "store")
    file = broker.home / "broker.conf"
    text = file.read_text()
    kept = [line for line in text.splitlines() if not line.startswith(("brokerRole", "brokerId"))]
    file.write_text("\n".join([*kept, "brokerRole=SLAVE", f"brokerId={broker_id}", ""]))
    broker.start()


async def until_level(master: Daemon) -> None:
    """Wait for a slave that has all but what is being sent."""

    def is_level() -> bool:
        return any(slave.diff < 10_000 for slave in replication(master).ha_connection_info)

    await asyncio.to_thread(wait_until, is_level, 30, "a level slave")


def found(reader: KeyedReader, acknowledged: dict[str, int]) -> int:
    """How many of the acknowledged messages were read, in order."""
    return sum(min(number, reader.read.get(key, 0)) for key, number in acknowledged.items())


@pytest.mark.timeout(60 + 20 * CYCLES)
async def test_every_acknowledged_message_is_on_the_slave(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random("loss")
    with Cluster(tmp_path) as cluster:
        cluster.start_name_server()
        master = cluster.start_broker(properties=PAIR)
        slave = cluster.start_broker(properties={**PAIR, "brokerRole": "SLAVE", "brokerId": "1"})
        await until_level(master)
        async with Client(ClientOptions()) as producing, Client(ClientOptions()) as consuming:
            sender = KeyedSender(producing, master.address, TOPIC, queues=QUEUES)
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(sender.run())
                for cycle in range(CYCLES):
                    goal = sender.count() + chance.randrange(50, 1_500)
                    await reach(sender.count, goal, f"messages taken before loss {cycle}")
                    await asyncio.to_thread(master.kill)
                    acknowledged = dict(sender.acknowledged)
                    await asyncio.to_thread(promote, slave)
                    sender.address = slave.address
                    reader = KeyedReader(
                        consuming, slave.address, TOPIC, queues=QUEUES, first_offset=0
                    )
                    reading = tasks.create_task(reader.run())
                    wanted = sum(acknowledged.values())
                    await reach(
                        partial(found, reader, acknowledged), wanted, f"found after loss {cycle}"
                    )
                    reading.cancel()
                    assert reader.faults == []
                    await asyncio.to_thread(make_slave, master, cycle + 2)
                    master, slave = slave, master
                    await until_level(master)
                await reach(sender.count, sender.count() + 200, "messages after the last loss")
                sender.stop()
                await sending
    figures = {
        "losses": CYCLES,
        "acknowledged": sender.count(),
        "attempts": sender.attempts,
        "refusals": dict(sender.rejections),
    }
    for name, value in figures.items():
        record_property(name, value)
    print(figures)
