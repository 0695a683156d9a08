"""Administration of name servers: key-value table, order configuration, write permissions.

Brackets at the end of a docstring sentence give the command of mqadmin and the request code.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from goddard.client import broker_api
from goddard.client.admin.requests import AdminBase, ask, ask_each, name_servers, properties_of
from goddard.client.arguments import QueueCount, Text
from goddard.client.queries import each
from goddard.config import format_properties
from goddard.protocol.bodies import KvTable
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.headers.cluster import (
    AddWritePermissionRequest,
    AddWritePermissionResponse,
    DeleteKvRequest,
    GetKvRequest,
    GetKvResponse,
    ListKvRequest,
    PutKvRequest,
    WipeWritePermissionRequest,
    WipeWritePermissionResponse,
)

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


def merge_order_conf(known: str | None, broker_name: str, queues: int) -> str:
    """``broker:count;...`` with the count of one broker changed or added."""
    counts = dict(part.partition(":")[::2] for part in (known or "").split(";") if part)
    counts[broker_name] = str(queues)
    return ";".join(f"{name}:{count}" for name, count in counts.items())


class NameServerMethods(AdminBase):
    """Read and change values, order configuration and properties of name servers."""

    # Key-value pairs

    async def set_kv(self, namespace: str, key: str, value: Text) -> None:
        """Store a value on every name server [updateKvConfig, 100]."""
        header = PutKvRequest(namespace=namespace, key=key, value=value)
        await ask_each(self, name_servers(self), RequestCode.PUT_KV_CONFIG, header)

    async def kv(self, namespace: str, key: str) -> str | None:
        """A value that a name server stores; None if it has none [101]."""
        command = broker_api.command(
            RequestCode.GET_KV_CONFIG, GetKvRequest(namespace=namespace, key=key)
        )
        response = await self.session.request_name_server(command, self.timeout_ms)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise broker_api.broker_error(response, "")
        return GetKvResponse.decode(response.fields).value

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value from every name server [deleteKvConfig, 102]."""
        header = DeleteKvRequest(namespace=namespace, key=key)
        await ask_each(self, name_servers(self), RequestCode.DELETE_KV_CONFIG, header)

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace; empty if there is no such namespace [219]."""
        command = broker_api.command(
            RequestCode.GET_KVLIST_BY_NAMESPACE, ListKvRequest(namespace=namespace)
        )
        response = await self.session.request_name_server(command, self.timeout_ms)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return {}
        if response.code != ResponseCode.SUCCESS:
            raise broker_api.broker_error(response, "")
        return (await broker_api.read(response, KvTable)).table

    # Queues of ordered topics

    async def order_conf(self, topic: str) -> str | None:
        """The queues that producers of an ordered topic use, ``broker:count;...`` [updateOrderConf
        -m get, 101].
        """
        return await self.kv(ORDER_NAMESPACE, topic)

    async def set_order_conf(self, topic: str, queue_counts: Text) -> None:
        """Set the queues that producers of an ordered topic use: ``broker-a:4;broker-b:4``
        [updateOrderConf -m put, 100].
        """
        await self.set_kv(ORDER_NAMESPACE, topic, queue_counts)

    async def set_broker_order_conf(self, topic: str, broker_name: str, queues: QueueCount) -> None:
        """Set the queues of an ordered topic on one broker, and keep those of the others [101,
        100].
        """
        known = await self.order_conf(topic)
        await self.set_order_conf(topic, merge_order_conf(known, broker_name, queues))

    async def delete_order_conf(self, topic: str) -> None:
        """Let producers of a topic use all its queues again [updateOrderConf -m delete, 102]."""
        await self.delete_kv(ORDER_NAMESPACE, topic)

    # Configuration

    async def name_server_config(
        self, chosen: Iterable[str] | None = None
    ) -> dict[str, dict[str, str]]:
        """The properties of name servers, by address; of all if None [getNamesrvConfig, 319]."""

        async def of_one(address: str) -> dict[str, str]:
            return properties_of(await ask(self, address, RequestCode.GET_NAMESRV_CONFIG))

        return await each(name_servers(self, chosen), of_one)

    async def update_name_server_config(
        self, properties: Mapping[str, str], chosen: Iterable[str] | None = None
    ) -> list[str]:
        """Change properties of name servers, of all if None; returns their addresses
        [updateNamesrvConfig, 318].
        """
        body = format_properties(properties).encode()
        code = RequestCode.UPDATE_NAMESRV_CONFIG
        return await ask_each(self, name_servers(self, chosen), code, body=body)

    # Write permission of brokers

    async def wipe_write_permission(
        self, broker_name: str, chosen: Iterable[str] | None = None
    ) -> dict[str, int]:
        """Remove a broker from the routes that producers see, so that it can be stopped
        [wipeWritePerm, 205].

        Returns the number of topics by name server. It lasts until the broker registers changed
        topics.
        """
        header = WipeWritePermissionRequest(broker_name=broker_name)

        async def of_one(address: str) -> int:
            response = await ask(self, address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
            return WipeWritePermissionResponse.decode(response.fields).wipe_topic_count

        return await each(name_servers(self, chosen), of_one)

    async def add_write_permission(
        self, broker_name: str, chosen: Iterable[str] | None = None
    ) -> dict[str, int]:
        """Add a broker to the routes that producers see again [addWritePerm, 327]."""
        header = AddWritePermissionRequest(broker_name=broker_name)

        async def of_one(address: str) -> int:
            response = await ask(self, address, RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
            return AddWritePermissionResponse.decode(response.fields).add_topic_count

        return await each(name_servers(self, chosen), of_one)
