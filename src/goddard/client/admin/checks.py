"""Checks of the settings of topics and groups, made before any request is sent.

Existing topics and groups may have any name, because brokers name topics of their own after
themselves. Only the names of new ones are checked.
"""

from goddard.client.arguments import check_permission
from goddard.client.checks import (
    MAX_INT,
    MAX_QUEUES,
    check_new_group,
    check_new_topic,
    check_range,
)
from goddard.protocol.bodies import TopicConfig
from goddard.protocol.bodies_admin import SubscriptionGroupConfig


def check_topic_config(config: TopicConfig) -> None:
    """ConfigError if a broker would refuse these settings of a topic, or should."""
    check_new_topic(config.topic_name)
    check_permission("topicPermission", config.perm)
    check_range("read_queue_nums", config.read_queue_nums, 0, MAX_QUEUES)
    check_range("write_queue_nums", config.write_queue_nums, 0, MAX_QUEUES)


def check_group_config(config: SubscriptionGroupConfig) -> None:
    """ConfigError if a broker would refuse these settings of a group, or should."""
    check_new_group(config.group_name)
    check_range("retry_queue_nums", config.retry_queue_nums, 0, MAX_QUEUES)
    check_range("retry_max_times", config.retry_max_times, -1, MAX_INT)
