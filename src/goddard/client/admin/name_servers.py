"""Administration of name servers: key-value pairs, their configuration, brokers' write permission.

Every function is a method of ``Admin``; see there. What changes something is asked of every name
server, as they do not talk to each other. A docstring's brackets give the verb of mqadmin and the
request code.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from goddard.client import broker_api
from goddard.client.admin.requests import (
    AdminLink,
    ask,
    ask_each,
    each,
    name_servers,
    properties_of,
)
from goddard.config import format_properties
from goddard.protocol.bodies import KvTable
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.headers_cluster import (
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


# --- Key-value pairs ------------------------------------------------------------------------------


async def set_kv(admin: AdminLink, namespace: str, key: str, value: str) -> None:
    """Keep a value at every name server [updateKvConfig, 100]."""
    header = PutKvRequest(namespace=namespace, key=key, value=value)
    await ask_each(admin, name_servers(admin), RequestCode.PUT_KV_CONFIG, header)


async def kv(admin: AdminLink, namespace: str, key: str) -> str | None:
    """A value that a name server keeps; None if it has none [101]."""
    command = broker_api.command(
        RequestCode.GET_KV_CONFIG, GetKvRequest(namespace=namespace, key=key)
    )
    response = await admin.session.request_name_server(command, admin.timeout_ms)
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    if response.code != ResponseCode.SUCCESS:
        raise broker_api.refusal(response, "")
    return GetKvResponse.decode(response.fields).value


async def delete_kv(admin: AdminLink, namespace: str, key: str) -> None:
    """Have every name server forget a value, if it has it [deleteKvConfig, 102]."""
    header = DeleteKvRequest(namespace=namespace, key=key)
    await ask_each(admin, name_servers(admin), RequestCode.DELETE_KV_CONFIG, header)


async def kv_list(admin: AdminLink, namespace: str) -> dict[str, str]:
    """All values of a namespace; none if there is no such namespace [219]."""
    command = broker_api.command(
        RequestCode.GET_KVLIST_BY_NAMESPACE, ListKvRequest(namespace=namespace)
    )
    response = await admin.session.request_name_server(command, admin.timeout_ms)
    if response.code == ResponseCode.QUERY_NOT_FOUND:
        return {}
    if response.code != ResponseCode.SUCCESS:
        raise broker_api.refusal(response, "")
    return (await broker_api.read(response, KvTable)).table


# --- Queues of ordered topics ---------------------------------------------------------------------


async def order_conf(admin: AdminLink, topic: str) -> str | None:
    """The queues that producers of an ordered topic use, ``broker:count;...`` [updateOrderConf -m
    get, 101]."""
    return await kv(admin, ORDER_NAMESPACE, topic)


async def set_order_conf(admin: AdminLink, topic: str, queue_counts: str) -> None:
    """Say which queues producers of an ordered topic use: ``broker-a:4;broker-b:4``
    [updateOrderConf -m put, 100]."""
    await set_kv(admin, ORDER_NAMESPACE, topic, queue_counts)


async def set_broker_order_conf(
    admin: AdminLink, topic: str, broker_name: str, queues: int
) -> None:
    """The same for one broker; the others' stay [101, 100]."""
    known = await order_conf(admin, topic)
    await set_order_conf(admin, topic, merge_order_conf(known, broker_name, queues))


def merge_order_conf(known: str | None, broker_name: str, queues: int) -> str:
    """``broker:count;...`` with the count of one broker changed or added."""
    counts = dict(part.partition(":")[::2] for part in (known or "").split(";") if part)
    counts[broker_name] = str(queues)
    return ";".join(f"{name}:{count}" for name, count in counts.items())


async def delete_order_conf(admin: AdminLink, topic: str) -> None:
    """Let producers of a topic use all its queues again [updateOrderConf -m delete, 102]."""
    await delete_kv(admin, ORDER_NAMESPACE, topic)


# --- Configuration --------------------------------------------------------------------------------


async def name_server_config(
    admin: AdminLink, chosen: Iterable[str] | None = None
) -> dict[str, dict[str, str]]:
    """The properties of some name servers, or of all, by address [getNamesrvConfig, 319]."""

    async def of_one(address: str) -> dict[str, str]:
        return properties_of(await ask(admin, address, RequestCode.GET_NAMESRV_CONFIG))

    return await each(name_servers(admin, chosen), of_one)


async def update_name_server_config(
    admin: AdminLink, properties: Mapping[str, str], chosen: Iterable[str] | None = None
) -> list[str]:
    """Change properties of some name servers, or of all; gives their addresses
    [updateNamesrvConfig, 318]."""
    body = format_properties(properties).encode()
    code = RequestCode.UPDATE_NAMESRV_CONFIG
    return await ask_each(admin, name_servers(admin, chosen), code, body=body)


# --- Write permission of brokers ------------------------------------------------------------------


async def wipe_write_permission(
    admin: AdminLink, broker_name: str, chosen: Iterable[str] | None = None
) -> dict[str, int]:
    """Take a broker out of the routes that producers see, so that it can be stopped
    [wipeWritePerm, 205].

    Gives the number of topics by name server. It lasts until the broker changes its topics.
    """
    header = WipeWritePermissionRequest(broker_name=broker_name)

    async def of_one(address: str) -> int:
        response = await ask(admin, address, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header)
        return WipeWritePermissionResponse.decode(response.fields).wipe_topic_count

    return await each(name_servers(admin, chosen), of_one)


async def add_write_permission(
    admin: AdminLink, broker_name: str, chosen: Iterable[str] | None = None
) -> dict[str, int]:
    """Put a broker back into the routes that producers see [addWritePerm, 327]."""
    header = AddWritePermissionRequest(broker_name=broker_name)

    async def of_one(address: str) -> int:
        response = await ask(admin, address, RequestCode.ADD_WRITE_PERM_OF_BROKER, header)
        return AddWritePermissionResponse.decode(response.fields).add_topic_count

    return await each(name_servers(admin, chosen), of_one)
