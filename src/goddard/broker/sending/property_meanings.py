"""Which properties of a message mean something to the broker that stores it. Pure.

The compiled lane (``goddard.broker.lane.sends``) takes only messages without a special property;
the general route (``send``, ``message_rules``) handles all of them. A property that is not named
here is text to both: the general route may use no other, which a test checks.
"""

from typing import Final

from goddard.protocol.message import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_INNER_NUM,
    PROPERTY_KEYS,
    PROPERTY_POP_CK,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REGION,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRACE,
    PROPERTY_TRANSACTION_PREPARED,
    PROPERTY_UNIQUE_ID,
    PROPERTY_WAIT,
)

# They name a time of delivery, and need a timer wheel.
TIMER_PROPERTIES: Final = frozenset(
    (PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELAY_SEC)
)
# A message without them goes to its own topic and queue.
DELAY_PROPERTIES: Final = TIMER_PROPERTIES | {PROPERTY_DELAY}
# They change where a message goes, or whether it is stored, or the broker sets them itself.
SPECIAL_PROPERTIES: Final = DELAY_PROPERTIES.union(
    (
        PROPERTY_CLUSTER,
        PROPERTY_INNER_NUM,
        PROPERTY_POP_CK,
        PROPERTY_REAL_QUEUE_ID,
        PROPERTY_REAL_TOPIC,
        PROPERTY_REGION,
        PROPERTY_TRACE,
        PROPERTY_TRANSACTION_PREPARED,
    )
)
# All that begin so are special, too.
SPECIAL_PREFIX: Final = "TIMER_"
# They are read, by the lane as well: tags and keys for queue and index, the unique id for the
# answer, and whether the sender waits for the disk.
READ_PROPERTIES: Final = frozenset(
    (PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_ID, PROPERTY_WAIT)
)
