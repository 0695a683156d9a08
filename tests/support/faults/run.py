"""One round: a safety phase with faults, a liveness phase without, then everything is checked."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from goddard.client.admin.admin import Admin
from goddard.client.message import Message
from goddard.client.options import SessionKeywords
from goddard.client.produce.producer import Producer
from goddard.client.values import SendStatus
from goddard.environment import Environment
from goddard.errors import GoddardError
from tests.support.faults.cluster import Cluster
from tests.support.faults.inject import Injector
from tests.support.faults.loopback import LoopbackNetwork
from tests.support.faults.network import PrivateNetwork
from tests.support.faults.observe import Observer
from tests.support.faults.schedule import PAIRS, Setup
from tests.support.history import check
from tests.support.history.record import History, Outcome, Term
from tests.support.history.replicas import check_logs, check_routes
from tests.support.history.story import tell
from tests.support.workload import TOPICS, Workload

_LIVENESS_SECONDS: Final = 120.0
_UNDO_SECONDS: Final = 200.0
_READY_SECONDS: Final = 90.0
_READ_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 1.0
_PROBE_TOPIC: Final = "Probe"
_SHOWN: Final = 10


@dataclass
class Result:
    """What a round came to."""

    setup: Setup
    violations: list[str]
    faults: Counter[str]
    history: History
    seconds: float
    healed_seconds: float
    notes: list[str] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return len(self.history.sends)

    @property
    def acknowledged(self) -> int:
        return sum(send.outcome is Outcome.ACKNOWLEDGED for send in self.history.sends)

    @property
    def lost(self) -> int:
        return sum(violation.startswith("lost:") for violation in self.violations)

    def report(self) -> str:
        """For people: seed, faults and what happened to the messages concerned."""
        lines = [str(self.setup)]
        lines += [f"  violation: {violation}" for violation in self.violations[:_SHOWN]]
        if len(self.violations) > _SHOWN:
            lines.append(f"  and {len(self.violations) - _SHOWN} more violations")
        lines += ["schedule:", *(f"  {fault}" for fault in self.setup.faults)]
        lines += ["what happened:", *(f"  {note}" for note in self.notes)]
        lines += ["history:", *(f"  {line}" for line in tell(self.history, self.violations))]
        return "\n".join(lines)


async def run_round(
    setup: Setup,
    directory: Path,
    show: Callable[[str], None],
    *,
    is_private: bool,
    defect: str = "",
) -> Result:
    """Run a round in a network of its own; ``is_private`` where namespaces are allowed."""
    async with PrivateNetwork() if is_private else LoopbackNetwork() as network:
        with Cluster(setup, network, directory, defect=defect) as cluster:
            return await _Round(setup, cluster, show).run()


class _Round:
    def __init__(self, setup: Setup, cluster: Cluster, show: Callable[[str], None]) -> None:
        self._setup = setup
        self._cluster = cluster
        self._show = show
        self._began = time.monotonic()
        self._notes: list[str] = []
        self._healed_seconds = 0.0
        self._workload = Workload(
            setup.seed,
            name_servers=lambda: cluster.name_servers,
            options=_client_options,
            now=self._now,
            note=lambda _: None,
        )
        self._history = self._workload.history
        self._injector = Injector(cluster, self._history, now=self._now, note=self._note)
        self._observer = Observer(cluster, self._injector, self._history, now=self._now)

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _note(self, text: str) -> None:
        line = f"{self._now():6.1f} {text}"
        self._notes.append(line)
        self._show(line)

    async def run(self) -> Result:
        await asyncio.to_thread(self._cluster.start)
        for broker, (master, _) in PAIRS.items():
            address = self._cluster.nodes[master].address
            mode = self._setup.modes[broker]
            self._history.terms.append(Term(broker, 1, address, 0.0, mode=mode))
        self._history.members = self._observer.members()
        await self._create_topics()
        self._note("ready")
        watching = asyncio.create_task(self._observer.watch())
        clients = [
            asyncio.create_task(main(Environment()), name=name)
            for name, main in self._workload.clients.items()
        ]
        try:
            await self._disturb()
            await self._heal()
        finally:
            for task in (watching, *clients):
                task.cancel()
            ended = await asyncio.gather(watching, *clients, return_exceptions=True)
        problems = [
            f"a client failed: {error!r}" for error in ended if isinstance(error, Exception)
        ]
        violations = [*problems, *self._injector.problems, *check(self._history)]
        return Result(
            setup=self._setup,
            violations=[self._with_names(text) for text in violations],
            faults=self._injector.done,
            history=self._history,
            seconds=self._now(),
            healed_seconds=self._healed_seconds,
            notes=self._notes,
        )

    def _with_names(self, text: str) -> str:
        for node in self._cluster.nodes.values():
            text = text.replace(node.address, node.name)
        return text

    async def _create_topics(self) -> None:
        """As soon as all brokers have routes."""
        until = self._now() + _READY_SECONDS
        while True:
            self._history.routes = await self._observer.routes()
            problems = check_routes(self._history)
            if not problems:
                break
            if self._now() > until:
                raise TimeoutError(f"the brokers are not registered: {problems}")
            await asyncio.sleep(0.2)
        async with Admin(self._cluster.name_servers) as admin:
            for topic in (*TOPICS, _PROBE_TOPIC):
                await admin.create_topic(topic, cluster="DefaultCluster", queues=2)

    async def _disturb(self) -> None:
        """The safety phase: every fault in its time, and until all have ended."""
        began = self._now()
        injected: list[asyncio.Task[None]] = []
        for fault in self._setup.faults:
            await asyncio.sleep(max(0.0, began + fault.at - self._now()))
            injected.append(asyncio.create_task(self._injector.inject(fault)))
        await asyncio.sleep(max(0.0, began + self._setup.safety_seconds - self._now()))
        _, late = await asyncio.wait(injected, timeout=_UNDO_SECONDS)
        for task in late:
            task.cancel()
            self._injector.problems.append("a fault does not end")
        for error in await asyncio.gather(*injected, return_exceptions=True):
            if isinstance(error, Exception):
                raise error

    async def _heal(self) -> None:
        """From here on everything works; wait until that shows."""
        self._cluster.network.heal()
        for node in self._cluster.nodes.values():
            if not node.process.is_running:
                await self._injector.start(node)
        self._note("healed")
        self._workload.is_safety_over = True
        began = self._now()
        problems = ["nothing was asked"]
        while problems and self._now() < began + _LIVENESS_SECONDS:
            await asyncio.sleep(_POLL_SECONDS)
            problems = await self._problems()
        self._healed_seconds = self._now() - began
        if not problems:
            self._note(f"everything works again after {self._healed_seconds:.1f} s")
            return
        self._history.not_healed += [f"{text} ({_LIVENESS_SECONDS:g} s)" for text in problems]
        self._injector.problems += await self._read()

    async def _problems(self) -> list[str]:
        """What does not work yet. At last the history has all that is stored."""
        history = self._history
        history.routes = await self._observer.routes()
        problems = check_routes(history)
        if problems:
            return problems
        history.comparisons = await self._observer.compare_logs()
        problems = check_logs(history)
        if not self._workload.is_consumed():
            problems.append("not everything that was acknowledged is consumed")
        if problems:
            return problems
        problems = await self._probe()
        if problems:
            return problems
        problems = await self._read()
        # Delayed messages and decisions of transactions may be on their way.
        return problems or [
            text for text in check(history) if text.startswith("lost:") or "never consumed" in text
        ]

    async def _read(self) -> list[str]:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                await self._workload.read_everything(Environment())
        except (GoddardError, TimeoutError) as error:
            return [f"the queues cannot be read: {error!r}"]
        return []

    async def _probe(self) -> list[str]:
        """Whether each master acknowledges a message."""
        problems = []
        name_servers = self._cluster.name_servers
        async with Producer(
            "probe", name_servers=name_servers, **_client_options("probe")
        ) as producer:
            for queue in await producer.publish_queues(_PROBE_TOPIC):
                try:
                    result = await producer.send(
                        Message(_PROBE_TOPIC, b"probe"), queue=queue, timeout_ms=3_000
                    )
                except GoddardError as error:
                    problems.append(f"{queue} refuses a message: {error}")
                else:
                    if result.status is not SendStatus.SEND_OK:
                        problems.append(f"{queue} answers {result.status.name}")
        return problems


def _client_options(name: str) -> SessionKeywords:
    # They share an address and a process.
    return {"instance_name": name}
