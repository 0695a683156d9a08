"""What a heartbeat may tell: its bounds, checked before anything of it is kept. Pure."""

from typing import Final

from goddard.protocol.bodies_client import HeartbeatData
from goddard.protocol.filters.expression import is_tag_type
from goddard.protocol.responses import InvalidParameterError

# Far beyond any real client: a heartbeat is kept in memory until its connection ends.
MAX_ID_CHARS: Final = 1024
_MAX_GROUPS_PER_HEARTBEAT: Final = 4096
_MAX_SUBSCRIPTIONS: Final = 10_000
# Of all SQL expressions in a heartbeat, each with a little for its own sake: they are compiled.
_MAX_SQL_CHARS_PER_HEARTBEAT: Final = 65_536
_SQL_CHARS_PER_EXPRESSION: Final = 64


def check_heartbeat(data: HeartbeatData) -> None:
    """InvalidParameterError for one that tells more than any real client does."""
    if len(data.client_id) > MAX_ID_CHARS:
        raise InvalidParameterError(f"the clientID is longer than {MAX_ID_CHARS} characters")
    if len(data.consumer_data_set) + len(data.producer_data_set) > _MAX_GROUPS_PER_HEARTBEAT:
        raise InvalidParameterError(
            f"a heartbeat tells of {_MAX_GROUPS_PER_HEARTBEAT} groups at most"
        )
    for producer in data.producer_data_set:
        if len(producer.group_name) > MAX_ID_CHARS:
            raise InvalidParameterError("the name of a producer group is too long")
    for consumer in data.consumer_data_set:
        if len(consumer.subscription_data_set) > _MAX_SUBSCRIPTIONS:
            raise InvalidParameterError(
                f"a consumer has {_MAX_SUBSCRIPTIONS} subscriptions at most"
            )
    sql_chars = sum(
        len(subscription.sub_string) + _SQL_CHARS_PER_EXPRESSION
        for consumer in data.consumer_data_set
        for subscription in consumer.subscription_data_set
        if not is_tag_type(subscription.expression_type)
    )
    if sql_chars > _MAX_SQL_CHARS_PER_HEARTBEAT:
        raise InvalidParameterError(
            f"the SQL expressions of a heartbeat have {_MAX_SQL_CHARS_PER_HEARTBEAT} characters "
            "at most"
        )
