"""Administration of controllers, which elect masters in RocketMQ 5.

Any controller may be given: requests for the leader are sent to the leader.

Brackets at the end of a docstring sentence give the command of mqadmin and the request code.
"""

from collections.abc import Iterable, Mapping

from goddard.client import broker_api
from goddard.client.admin.requests import AdminBase, ask, ask_each, properties_of
from goddard.client.admin.values import ElectedMaster
from goddard.client.arguments import BrokerId
from goddard.client.errors import ClientError
from goddard.client.queries import each
from goddard.config import format_properties
from goddard.protocol.bodies import BrokerMemberGroup, encode_body
from goddard.protocol.bodies_admin import BrokerReplicas
from goddard.protocol.codes import RequestCode
from goddard.protocol.headers.cluster import (
    CleanBrokerDataRequest,
    ElectMasterRequest,
    ElectMasterResponse,
    GetControllerMetadataResponse,
)


class ControllerMethods(AdminBase):
    """Read and change controllers, and the brokers that they manage."""

    async def controller_metadata(self, controller_address: str) -> GetControllerMetadataResponse:
        """The controllers and their leader [getControllerMetaData, 1005]."""
        response = await ask(self, controller_address, RequestCode.CONTROLLER_GET_METADATA_INFO)
        return GetControllerMetadataResponse.decode(response.fields)

    async def _leader(self, controller_address: str) -> str:
        leader = (await self.controller_metadata(controller_address)).controller_leader_address
        if not leader:
            raise ClientError(
                "the controllers have no leader",
                address=controller_address,
                advice="a leader needs more than half of the controllers to run",
            )
        return leader

    async def sync_state_sets(
        self, controller_address: str, broker_names: Iterable[str]
    ) -> BrokerReplicas:
        """The masters of brokers, and which replicas are in sync [getSyncStateSet, 1006]."""
        leader = await self._leader(controller_address)
        body = encode_body(list(broker_names))
        code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        return await broker_api.read(await ask(self, leader, code, body=body), BrokerReplicas)

    async def elect_master(
        self, controller_address: str, cluster: str, broker_name: str, broker_id: BrokerId
    ) -> ElectedMaster:
        """Make a replica the master of its broker [electMaster, 1002]."""
        leader = await self._leader(controller_address)
        header = ElectMasterRequest(
            cluster_name=cluster,
            broker_name=broker_name,
            broker_id=broker_id,
            designate_elect=True,
            invoke_time=self.clock.now_ms(),
        )
        response = await ask(self, leader, RequestCode.CONTROLLER_ELECT_MASTER, header)
        header_of_result = ElectMasterResponse.decode(response.fields)
        return ElectedMaster(
            header_of_result.master_address,
            header_of_result.master_epoch,
            header_of_result.sync_state_set_epoch,
            await broker_api.read(response, BrokerMemberGroup),
        )

    async def clean_broker_data(
        self,
        controller_address: str,
        cluster: str,
        broker_name: str,
        *,
        broker_ids: Iterable[int] | None = None,
        even_if_alive: bool = False,
    ) -> None:
        """Delete a broker, or some of its replicas, from the controllers [cleanBrokerMetadata,
        1011].
        """
        leader = await self._leader(controller_address)
        header = CleanBrokerDataRequest(
            cluster_name=cluster,
            broker_name=broker_name,
            broker_controller_ids_to_clean=(
                None if broker_ids is None else ";".join(str(one) for one in broker_ids)
            ),
            is_clean_living_broker=even_if_alive,
            invoke_time=self.clock.now_ms(),
        )
        await ask(self, leader, RequestCode.CLEAN_BROKER_DATA, header)

    async def controller_config(
        self, controller_addresses: Iterable[str]
    ) -> dict[str, dict[str, str]]:
        """The properties of controllers, by address [getControllerConfig, 1010]."""

        async def of_one(address: str) -> dict[str, str]:
            return properties_of(await ask(self, address, RequestCode.GET_CONTROLLER_CONFIG))

        return await each(controller_addresses, of_one)

    async def update_controller_config(
        self, controller_addresses: Iterable[str], properties: Mapping[str, str]
    ) -> list[str]:
        """Change properties of controllers, and return their addresses
        [updateControllerConfig, 1009].
        """
        body = format_properties(properties).encode()
        code = RequestCode.UPDATE_CONTROLLER_CONFIG
        return await ask_each(self, controller_addresses, code, body=body)
