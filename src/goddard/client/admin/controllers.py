"""Administration of controllers, which choose masters in RocketMQ 5.

Every function is a method of ``Admin``; see there. A docstring's brackets give the verb of mqadmin
and the request code. Any controller may be given: what only their leader knows is asked of it.
"""

from collections.abc import Iterable, Mapping

from goddard.client import broker_api
from goddard.client.admin.requests import AdminLink, ask, ask_each, each, properties_of
from goddard.client.errors import ClientError
from goddard.config import format_properties
from goddard.protocol.bodies import BrokerMemberGroup, encode_body
from goddard.protocol.bodies_admin import BrokerReplicas
from goddard.protocol.codes import RequestCode
from goddard.protocol.headers_cluster import (
    CleanBrokerDataRequest,
    ElectMasterRequest,
    GetControllerMetadataResponse,
)


async def controller_metadata(
    admin: AdminLink, controller_address: str
) -> GetControllerMetadataResponse:
    """The controllers, and which of them leads [getControllerMetaData, 1005]."""
    response = await ask(admin, controller_address, RequestCode.CONTROLLER_GET_METADATA_INFO)
    return GetControllerMetadataResponse.decode(response.fields)


async def _leader(admin: AdminLink, controller_address: str) -> str:
    leader = (await controller_metadata(admin, controller_address)).controller_leader_address
    if not leader:
        raise ClientError(
            "the controllers have no leader",
            address=controller_address,
            advice="more than half of them have to run",
        )
    return leader


async def sync_state_sets(
    admin: AdminLink, controller_address: str, broker_names: Iterable[str]
) -> BrokerReplicas:
    """Masters of brokers, and which replicas are in step [getSyncStateSet, 1006]."""
    leader = await _leader(admin, controller_address)
    body = encode_body(list(broker_names))
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    return await broker_api.read(await ask(admin, leader, code, body=body), BrokerReplicas)


async def elect_master(
    admin: AdminLink, controller_address: str, cluster: str, broker_name: str, broker_id: int
) -> BrokerMemberGroup:
    """Make a replica the master of its broker; gives the replicas [electMaster, 1002]."""
    leader = await _leader(admin, controller_address)
    header = ElectMasterRequest(
        cluster_name=cluster,
        broker_name=broker_name,
        broker_id=broker_id,
        designate_elect=True,
        invoke_time=admin.clock.now_ms(),
    )
    response = await ask(admin, leader, RequestCode.CONTROLLER_ELECT_MASTER, header)
    return await broker_api.read(response, BrokerMemberGroup)


async def clean_broker_data(
    admin: AdminLink,
    controller_address: str,
    cluster: str,
    broker_name: str,
    *,
    broker_ids: Iterable[int] | None = None,
    even_if_alive: bool = False,
) -> None:
    """Have the controllers forget a broker, or some of its replicas [cleanBrokerMetadata, 1011]."""
    leader = await _leader(admin, controller_address)
    header = CleanBrokerDataRequest(
        cluster_name=cluster,
        broker_name=broker_name,
        broker_controller_ids_to_clean=(
            None if broker_ids is None else ";".join(str(one) for one in broker_ids)
        ),
        is_clean_living_broker=even_if_alive,
        invoke_time=admin.clock.now_ms(),
    )
    await ask(admin, leader, RequestCode.CLEAN_BROKER_DATA, header)


async def controller_config(
    admin: AdminLink, controller_addresses: Iterable[str]
) -> dict[str, dict[str, str]]:
    """The properties of controllers, by address [getControllerConfig, 1010]."""

    async def of_one(address: str) -> dict[str, str]:
        return properties_of(await ask(admin, address, RequestCode.GET_CONTROLLER_CONFIG))

    return await each(controller_addresses, of_one)


async def update_controller_config(
    admin: AdminLink, controller_addresses: Iterable[str], properties: Mapping[str, str]
) -> list[str]:
    """Change properties of controllers; gives their addresses [updateControllerConfig, 1009]."""
    body = format_properties(properties).encode()
    code = RequestCode.UPDATE_CONTROLLER_CONFIG
    return await ask_each(admin, controller_addresses, code, body=body)
