"""The message store: RocketMQ's files, read and written, crash-safe. Synchronous throughout.

``store.MessageStore`` is what other packages use; ``config.StoreConfig`` sets it up, and
``records.PreparedRecord`` is what goes in. From the bottom up: ``files`` (every call to the file
system), ``segment`` and ``worker``, ``commitlog`` with ``flush``, ``consumequeue`` and ``queues``,
``index``, ``dispatch``; ``recovery`` decides and ``restore`` acts when a store opens; ``retention``
decides what is deleted; ``reading`` answers pulls and queries. ``tables`` keeps the metadata.
"""
