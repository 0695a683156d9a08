"""RocketMQ clusters with access control: ACL 2.0 and a controller at 5.4, ACL 1.0 at 4.9."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from goddard.client.admin.admin import Admin
from goddard.client.options import Credentials
from goddard.testing.ports import lease_port
from tests.support.idle_consumer import eventually
from tests.support.java import JavaPeers

CLUSTER = "DefaultCluster"
BROKER = "broker-guarded"
ROOT = Credentials("root", "root-secret")
_AUTH = "org.apache.rocketmq.auth"
_GUARDED = {
    "brokerClusterName": CLUSTER,
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"root","secretKey":"root-secret"}',
    "enableControllerMode": "true",
    "brokerId": "-1",
}
_PLAIN_ACL = """\
globalWhiteRemoteAddresses:
- 127.0.0.1
accounts:
- accessKey: RocketMQ
  secretKey: "12345678"
  admin: true
"""


@dataclass(frozen=True)
class Guarded:
    """The addresses of the servers; ``controller`` is empty if there is none."""

    namesrv: str
    broker: str
    controller: str


@contextmanager
def guarded_cluster(directory: Path) -> Iterator[Guarded]:
    """5.4.0 with users, rules and a controller; ``ROOT`` may do everything."""
    with JavaPeers("5.4.0", directory) as java:
        controller = f"127.0.0.1:{lease_port()}"
        name_server = java.start_name_server(
            properties={
                "enableControllerInNamesrv": "true",
                "controllerDLegerGroup": "controllers",
                "controllerDLegerPeers": f"n0-{controller}",
                "controllerDLegerSelfId": "n0",
                "controllerStorePath": str(directory / "controller"),
            }
        )
        properties = {**_GUARDED, "controllerAddr": controller}
        broker = java.start_broker(BROKER, namesrv=name_server.address, properties=properties)
        asyncio.run(_registered(name_server.address))
        yield Guarded(name_server.address, broker.address, controller)


async def _registered(namesrv: str) -> None:
    async with Admin(namesrv, credentials=ROOT, timeout_ms=15_000) as admin:
        await eventually(admin.clusters, timeout_seconds=60)


@contextmanager
def guarded_legacy_cluster(directory: Path) -> Iterator[Guarded]:
    """4.9.4 with ``plain_acl.yml``, which lets this machine in without keys."""
    with JavaPeers("4.9.4", directory) as java:
        name_server = java.start_name_server()
        broker = java.start_broker(
            BROKER,
            namesrv=name_server.address,
            properties={"aclEnable": "true"},
            conf_files={"plain_acl.yml": _PLAIN_ACL},
        )
        asyncio.run(_registered(name_server.address))
        yield Guarded(name_server.address, broker.address, "")
