"""Administration of controllers, which choose masters in RocketMQ 5.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from collections.abc import Iterable, Mapping

from goddard.client.admin.admin import Admin as AsyncAdmin
from goddard.client.blocking import BlockingClient
from goddard.protocol.bodies import BrokerMemberGroup
from goddard.protocol.bodies_admin import BrokerReplicas
from goddard.protocol.headers_cluster import GetControllerMetadataResponse


class AdminControllers(BlockingClient[AsyncAdmin]):
    def controller_metadata(self, controller_address: str) -> GetControllerMetadataResponse:
        """The controllers, and which of them leads [getControllerMetaData, 1005]."""
        return self._run(lambda: self._core.controller_metadata(controller_address))

    def sync_state_sets(
        self, controller_address: str, broker_names: Iterable[str]
    ) -> BrokerReplicas:
        """Masters of brokers, and which replicas are in step [getSyncStateSet, 1006]."""
        return self._run(lambda: self._core.sync_state_sets(controller_address, broker_names))

    def elect_master(
        self, controller_address: str, cluster: str, broker_name: str, broker_id: int
    ) -> BrokerMemberGroup:
        """Make a replica the master of its broker; gives the replicas [electMaster, 1002]."""
        return self._run(
            lambda: self._core.elect_master(controller_address, cluster, broker_name, broker_id)
        )

    def clean_broker_data(
        self,
        controller_address: str,
        cluster: str,
        broker_name: str,
        *,
        broker_ids: Iterable[int] | None = None,
        even_if_alive: bool = False,
    ) -> None:
        """Have the controllers forget a broker, or some of its replicas [cleanBrokerMetadata,
        1011].
        """
        self._run(
            lambda: self._core.clean_broker_data(
                controller_address,
                cluster,
                broker_name,
                broker_ids=broker_ids,
                even_if_alive=even_if_alive,
            )
        )

    def controller_config(self, controller_addresses: Iterable[str]) -> dict[str, dict[str, str]]:
        """The properties of controllers, by address [getControllerConfig, 1010]."""
        return self._run(lambda: self._core.controller_config(controller_addresses))

    def update_controller_config(
        self, controller_addresses: Iterable[str], properties: Mapping[str, str]
    ) -> list[str]:
        """Change properties of controllers; gives their addresses [updateControllerConfig,
        1009].
        """
        return self._run(
            lambda: self._core.update_controller_config(controller_addresses, properties)
        )
