"""The state of replication, as a broker tells it."""

from typing import Any, Protocol

from goddard.protocol import fastjson
from goddard.protocol.bodies import KvTable, decode_body
from goddard.protocol.bodies_admin import HaStatus
from goddard.protocol.codes import RequestCode, ResponseCode
from goddard.protocol.frame import RemotingCommand
from goddard.testing.process import wait_until
from goddard.testing.wire import ask


class HasAddress(Protocol):
    """A broker: a process, or a node with one."""

    @property
    def address(self) -> str: ...


def replication(broker: HasAddress) -> HaStatus:
    answer = ask(broker.address, RemotingCommand(RequestCode.GET_BROKER_HA_STATUS))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return decode_body(answer.body, HaStatus)


def log_end(broker: HasAddress) -> int:
    """Of a broker of any version.

    RocketMQ 4.9.4 answers with an error until it has sampled its statistics for the first time.
    """

    def runtime_info() -> KvTable | None:
        answer = ask(broker.address, RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
        is_success = answer.code == ResponseCode.SUCCESS
        return decode_body(answer.body, KvTable) if is_success else None

    return int(wait_until(runtime_info, 30, "runtime info").table["commitLogMaxOffset"])


def table(broker: HasAddress, code: int) -> Any:
    """One of the tables that slaves copy, with the names of the wire."""
    answer = ask(broker.address, RemotingCommand(code))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return fastjson.loads(bytes(answer.body))
