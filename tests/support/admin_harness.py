"""The broker's administration without a broker process: ``ConsumerHarness`` with admin requests.

File operations run in the default executor of the loop.
"""

from pathlib import Path
from typing import Any

from goddard.broker.admin.broker import AdminBroker
from goddard.broker.admin.clients import AdminClients
from goddard.broker.admin.groups import AdminGroups
from goddard.broker.admin.messages import Queries
from goddard.broker.admin.offsets import AdminOffsets
from goddard.broker.admin.topics import AdminTopics
from goddard.broker.rules import register
from goddard.broker.stats import Stats
from goddard.environment import Environment
from goddard.protocol import fastjson
from goddard.protocol.frame import RemotingCommand
from goddard.store.tables import DelayOffsetTable
from tests.support.consumer_harness import ConsumerHarness


class AdminHarness(ConsumerHarness):
    """Create it inside a running loop; use it as a context manager."""

    def __init__(
        self, root: Path, *, properties: dict[str, str] | None = None, **store_settings: Any
    ) -> None:
        super().__init__(root, properties=properties, **store_settings)
        self.figures = Stats("DefaultCluster", self.topics.is_system)
        self.store.add_listener(self.figures.stored)
        self.delay_table = DelayOffsetTable(root / "config", self.clock)
        shared: dict[str, Any] = {
            "settings": self.settings,
            "topics": self.topics,
            "store": self.store,
        }
        parts = (
            AdminTopics(offsets=self.offsets, stats=self.figures, **shared),
            AdminGroups(
                settings=self.settings,
                groups=self.groups,
                clients=self.clients,
                offsets=self.offsets,
                stats=self.figures,
            ),
            AdminOffsets(
                groups=self.groups,
                clients=self.clients,
                offsets=self.offsets,
                delays=self.delay_table,
                stats=self.figures,
                clock=self.clock,
                **shared,
            ),
            AdminClients(groups=self.groups, clients=self.clients, clock=self.clock, **shared),
            AdminBroker(
                delays=self.delay_table,
                stats=self.figures,
                environment=Environment(clock=self.clock),
                **shared,
            ),
            Queries(
                settings=self.settings,
                store=self.store,
                clients=self.clients,
                filters=self.filters,
            ),
        )
        for part in parts:
            register(self.handlers, part.handlers())


def body_of(answer: RemotingCommand) -> Any:
    """The JSON body of a successful response."""
    assert answer.code == 0, (answer.code, answer.remark)
    return fastjson.loads(bytes(answer.body))
