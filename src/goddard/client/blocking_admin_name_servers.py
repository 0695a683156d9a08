"""Administration of name servers: key-value pairs, their configuration, brokers' write permission.

Written by tools/write_blocking.py from the asyncio classes: change those instead.
"""

from collections.abc import Iterable, Mapping

from goddard.client.admin.admin import Admin as AsyncAdmin
from goddard.client.blocking import BlockingClient


class AdminNameServers(BlockingClient[AsyncAdmin]):
    def kv(self, namespace: str, key: str) -> str | None:
        """A value that a name server keeps; None if it has none [101]."""
        return self._run(lambda: self._core.kv(namespace, key))

    def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace; none if there is no such namespace [219]."""
        return self._run(lambda: self._core.kv_list(namespace))

    def set_kv(self, namespace: str, key: str, value: str) -> None:
        """Keep a value at every name server [updateKvConfig, 100]."""
        self._run(lambda: self._core.set_kv(namespace, key, value))

    def delete_kv(self, namespace: str, key: str) -> None:
        """Have every name server forget a value, if it has it [deleteKvConfig, 102]."""
        self._run(lambda: self._core.delete_kv(namespace, key))

    def order_conf(self, topic: str) -> str | None:
        """The queues that producers of an ordered topic use, ``broker:count;...``
        [updateOrderConf -m get, 101].
        """
        return self._run(lambda: self._core.order_conf(topic))

    def set_order_conf(self, topic: str, queue_counts: str) -> None:
        """Say which queues producers of an ordered topic use: ``broker-a:4;broker-b:4``
        [updateOrderConf -m put, 100].
        """
        self._run(lambda: self._core.set_order_conf(topic, queue_counts))

    def set_broker_order_conf(self, topic: str, broker_name: str, queues: int) -> None:
        """The same for one broker; the others' stay [101, 100]."""
        self._run(lambda: self._core.set_broker_order_conf(topic, broker_name, queues))

    def delete_order_conf(self, topic: str) -> None:
        """Let producers of a topic use all its queues again [updateOrderConf -m delete, 102]."""
        self._run(lambda: self._core.delete_order_conf(topic))

    def name_server_config(self, chosen: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
        """The properties of some name servers, or of all, by address [getNamesrvConfig, 319]."""
        return self._run(lambda: self._core.name_server_config(chosen))

    def update_name_server_config(
        self, properties: Mapping[str, str], chosen: Iterable[str] | None = None
    ) -> list[str]:
        """Change properties of some name servers, or of all; gives their addresses
        [updateNamesrvConfig, 318].
        """
        return self._run(lambda: self._core.update_name_server_config(properties, chosen))

    def wipe_write_permission(
        self, broker_name: str, chosen: Iterable[str] | None = None
    ) -> dict[str, int]:
        """Take a broker out of the routes that producers see, so that it can be stopped
        [wipeWritePerm, 205].

        Gives the number of topics by name server. It lasts until the broker changes its
        topics.
        """
        return self._run(lambda: self._core.wipe_write_permission(broker_name, chosen))

    def add_write_permission(
        self, broker_name: str, chosen: Iterable[str] | None = None
    ) -> dict[str, int]:
        """Put a broker back into the routes that producers see [addWritePerm, 327]."""
        return self._run(lambda: self._core.add_write_permission(broker_name, chosen))
