"""Admin: access control and controllers, which only RocketMQ's broker has.

One name server with a controller inside, one broker; they start once for this file.
"""

from collections.abc import AsyncIterator

import pytest

from goddard.client.admin.admin import Admin
from goddard.client.errors import BrokerError
from goddard.client.options import Credentials
from goddard.protocol.bodies_admin import AclInfo, Policy, PolicyEntry
from goddard.protocol.codes import ResponseCode
from tests.support.guarded import BROKER, CLUSTER, ROOT, Guarded

pytestmark = pytest.mark.java


@pytest.fixture
async def admin(guarded: Guarded) -> AsyncIterator[Admin]:
    async with Admin(guarded.namesrv, credentials=ROOT, timeout_ms=15_000) as admin:
        yield admin


async def test_users_are_created_and_deleted(admin: Admin) -> None:
    (address,) = await admin.create_user("ann", "ann-secret", cluster=CLUSTER)
    ann = await admin.user("ann", broker=BROKER)
    assert ann is not None
    assert (ann.user_type, ann.user_status) == ("Normal", "enable")
    assert "ann-secret" not in repr(ann)
    assert await admin.update_user("ann", user_status="disable", broker=BROKER) == [address]
    (ann,) = await admin.users(broker=BROKER, containing="ann")
    assert ann.user_status == "disable"
    names = {user.username for user in await admin.users(broker=address)}
    assert {"ann", "root"} <= names
    await admin.delete_user("ann", cluster=CLUSTER)
    assert await admin.user("ann", broker=BROKER) is None
    assert await admin.users(broker=BROKER, containing="ann") == []


async def test_rights_are_granted_and_revoked(guarded: Guarded, admin: Admin) -> None:
    await admin.create_topic("guarded", cluster=CLUSTER)
    await admin.create_user("bob", "bob-secret", cluster=CLUSTER)
    entry = PolicyEntry(resource="Topic:guarded", actions=["Get"], decision="Allow")
    rights = AclInfo(subject="User:bob", policies=[Policy(policy_type="Custom", entries=[entry])])
    async with Admin(
        guarded.namesrv, credentials=Credentials("bob", "bob-secret"), timeout_ms=15_000
    ) as bob:
        with pytest.raises(BrokerError, match="no permission") as failure:
            await bob.topic_stats("guarded")
        assert failure.value.code == ResponseCode.NO_PERMISSION
        await admin.create_acl(rights, cluster=CLUSTER)
        assert len((await bob.topic_stats("guarded")).queues) == 8
    entry.actions = ["Get", "Pub"]
    await admin.update_acl(rights, broker=BROKER)
    known = await admin.acl("User:bob", broker=BROKER)
    assert known is not None
    assert sorted(known.policies[0].entries[0].actions or []) == ["Get", "Pub"]
    (found,) = await admin.acls(broker=BROKER, resource_containing="guarded")
    assert found.subject == "User:bob"
    await admin.delete_acl("User:bob", resource="Topic:guarded", cluster=CLUSTER)
    assert await admin.acl("User:bob", broker=BROKER) is None
    assert await admin.acls(broker=BROKER, subject_containing="bob") == []


@pytest.mark.parametrize(
    ("credentials", "remark"),
    [
        (None, "username cannot be null"),
        (Credentials("root", "wrong"), "check signature failed"),
        (Credentials("nobody", "secret"), "not found"),
    ],
)
async def test_unknown_users_are_refused(
    guarded: Guarded, credentials: Credentials | None, remark: str
) -> None:
    async with Admin(guarded.namesrv, credentials=credentials, timeout_ms=15_000) as admin:
        with pytest.raises(BrokerError, match="credentials") as failure:
            await admin.broker_config(BROKER)
    assert failure.value.code == ResponseCode.NO_PERMISSION
    assert remark in failure.value.remark


async def test_controllers_are_asked(guarded: Guarded, admin: Admin) -> None:
    controller = guarded.controller
    metadata = await admin.controller_metadata(controller)
    assert (metadata.controller_leader_address, metadata.is_leader) == (controller, True)
    sets = (await admin.sync_state_sets(controller, [BROKER])).replicas_info_table
    (master,) = sets[BROKER].in_sync_replicas
    assert (master.broker_address, master.alive) == (sets[BROKER].master_address, True)
    epochs = await admin.broker_epochs(BROKER)
    assert [entry.epoch for entry in epochs.epoch_list] == [1]
    with pytest.raises(BrokerError) as failure:
        await admin.elect_master(controller, CLUSTER, BROKER, 1)
    assert failure.value.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    with pytest.raises(BrokerError) as failure:
        await admin.clean_broker_data(controller, CLUSTER, BROKER)
    assert failure.value.code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA


async def test_controllers_are_configured(guarded: Guarded, admin: Admin) -> None:
    controller = guarded.controller
    change = {"scanNotActiveBrokerInterval": "6000"}
    assert await admin.update_controller_config([controller], change) == [controller]
    config = (await admin.controller_config([controller]))[controller]
    assert config["scanNotActiveBrokerInterval"] == "6000"
    with pytest.raises(BrokerError) as failure:
        await admin.update_controller_config([controller], {"configStorePath": "/tmp/x"})
    assert failure.value.code == ResponseCode.NO_PERMISSION
