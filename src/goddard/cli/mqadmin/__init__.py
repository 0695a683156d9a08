"""RocketMQ's command ``mqadmin``: its verbs, flags and columns."""
