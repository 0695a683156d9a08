"""A broker as ``goddard broker`` runs it, with a clock and files that a test controls.

``python -m tests.support.faults.broker CONFIGURATION CONTROL HOME [DEFECT]``; a defect of
``tests.support.simulation.planted`` shows that the suite finds it.
"""

import sys
from contextlib import nullcontext
from pathlib import Path

from goddard.broker.broker import Broker
from goddard.broker.settings import BrokerConfig
from goddard.broker.tuning import tune_process
from goddard.cli.daemon import OWN_OPTIONS, Daemon, run_until_stopped, serve
from goddard.environment import Environment
from tests.support.faults.control import Control, ControlledClock, ControlledFiles
from tests.support.simulation.planted import planted


def main(configuration: str, control_file: str, home: str, defect: str = "") -> int:
    control = Control(Path(control_file))
    environment = Environment(clock=ControlledClock(control), files=ControlledFiles(control))

    async def run(config: BrokerConfig) -> None:
        tune_process()
        await run_until_stopped(
            Broker(config, environment=environment), lambda broker: f"{broker.address} boot success"
        )

    daemon = Daemon(
        program="broker",
        config=BrokerConfig(),
        file_property="brokerConfigPath",
        log_name="broker",
        options=OWN_OPTIONS,
        main=run,
    )
    with planted(defect) if defect else nullcontext():
        return serve(daemon, Path(configuration), {"rocketmqHome": home}, {})


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
