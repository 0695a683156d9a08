"""RocketMQ for Spark: the sources and the sink behind ``format("rocketmq")`` and ``rocketmq-log``.

What runs on executors imports no broker, no command line and, but for ``source``, no pyspark.
"""
