"""Which groups belong to RocketMQ itself."""

import pytest

from goddard.cli.verbs.group_state import is_own_group


@pytest.mark.parametrize(
    ("group", "is_own"),
    [
        ("DEFAULT_CONSUMER", True),
        ("__MONITOR_CONSUMER", True),
        ("CLIENT_INNER_PRODUCER", True),
        ("CID_RMQ_SYS_TRANS", True),
        ("CID_ONSAPI_OTHER", True),
        ("orders", False),
    ],
)
def test_groups_of_rocketmq(group: str, is_own: bool) -> None:
    assert is_own_group(group) is is_own
