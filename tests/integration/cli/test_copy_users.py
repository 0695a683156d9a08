"""``mqadmin copyUser`` between two scripted brokers; Goddard's brokers have no users."""

import asyncio

import msgspec

from goddard.protocol.bodies import encode_body
from goddard.protocol.bodies_admin import UserInfo
from goddard.protocol.codes import RequestCode
from tests.support.command_line import CommandLine
from tests.support.fake_cluster import FakeCluster


async def test_a_disabled_user_is_disabled_at_the_target() -> None:
    ann = UserInfo(username="ann", password="p", user_type="Normal", user_status="disable")
    async with FakeCluster("source", "target") as cluster:
        source, target = cluster.brokers
        source.answers[RequestCode.AUTH_LIST_USER] = lambda request: request.reply(
            body=encode_body([ann])
        )
        mqadmin = CommandLine({"NAMESRV_ADDR": cluster.namesrv}, program="mqadmin")
        copy = ("copyUser", "-f", source.address, "-t", target.address)
        result = await asyncio.to_thread(mqadmin, *copy)
        assert result.code == 0, result.err
        (made,) = [one for one in target.requests if one.code == RequestCode.AUTH_CREATE_USER]
        assert msgspec.json.decode(made.body, type=UserInfo) == ann
