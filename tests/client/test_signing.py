"""Signed requests to RocketMQ's broker with authentication enabled."""

from collections.abc import Iterator

import pytest

from goddard.client.errors import BrokerError, ClientError
from goddard.client.message import Message
from goddard.client.options import Credentials
from goddard.client.produce.producer import Producer
from goddard.client.values import SendStatus
from goddard.protocol.codes import ResponseCode
from goddard.testing.process import wait_until
from goddard.testing.wire import query_brokers
from tests.support.java import JavaPeers

pytestmark = pytest.mark.java

USER, PASSWORD = "goddard", "12345678"


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with JavaPeers("5.4.0", tmp_path_factory.mktemp("guarded")) as java:
        name_server = java.start_name_server()
        user = f'{{"username":"{USER}","password":"{PASSWORD}"}}'
        java.start_broker(
            "guarded",
            namesrv=name_server.address,
            properties={
                "authenticationEnabled": "true",
                "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider."
                "DefaultAuthenticationProvider",
                "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication."
                "provider.LocalAuthenticationMetadataProvider",
                "initAuthenticationUser": user,
                "innerClientAuthenticationCredentials": user.replace(
                    "username", "accessKey"
                ).replace("password", "secretKey"),
            },
        )
        wait_until(
            lambda: "guarded" in query_brokers(name_server.address), 60, "guarded is registered"
        )
        yield name_server.address


async def test_signed_requests_are_accepted(namesrv: str) -> None:
    credentials = Credentials(USER, PASSWORD)
    async with Producer("signers", name_servers=namesrv, credentials=credentials) as producer:
        message = Message("signed", "größe".encode(), tags="A", properties={"ä": "ö"})
        assert (await producer.send(message)).status is SendStatus.SEND_OK
        assert (await producer.send_soon(message)).status is SendStatus.SEND_OK
        batch = [Message("signed", b"1"), Message("signed", b"2")]
        assert len(await producer.send_batch(batch)) == 2


@pytest.mark.parametrize(
    "credentials", [None, Credentials(USER, "wrong"), Credentials("nobody", PASSWORD)]
)
async def test_unauthorized_requests_are_rejected(
    namesrv: str, credentials: Credentials | None
) -> None:
    async with Producer(
        "unauthorized", name_servers=namesrv, credentials=credentials, retries=0
    ) as producer:
        with pytest.raises(ClientError) as error:
            await producer.send(Message("signed", b"x"))
        assert error.value.code == ResponseCode.NO_PERMISSION
        assert "check the permissions of topic and broker, and the credentials" in str(error.value)
        with pytest.raises(BrokerError):
            await producer.send_soon(Message("signed", b"x"))
