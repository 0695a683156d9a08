"""Administration for threads and scripts."""

from goddard.client.admin.admin import Admin as AsyncAdmin
from goddard.client.blocking.client import BlockingClient
from goddard.client.blocking.methods import blocking, constructor, docstring
from goddard.clock import Clock


class Admin(BlockingClient[AsyncAdmin]):
    __doc__ = docstring(AsyncAdmin)

    @constructor(AsyncAdmin)
    def __init__(self, core: AsyncAdmin) -> None:
        BlockingClient.__init__(self, core)

    @property
    def clock(self) -> Clock:
        """The source of the time."""
        return self._core.clock

    @property
    def timeout_ms(self) -> int:
        """How long one request may take."""
        return self._core.timeout_ms

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of the name servers."""
        return self._core.name_servers

    # Topics

    topics = blocking(AsyncAdmin.topics)
    topic_route = blocking(AsyncAdmin.topic_route)
    topic_queues = blocking(AsyncAdmin.topic_queues)
    topic_clusters = blocking(AsyncAdmin.topic_clusters)
    topic_stats = blocking(AsyncAdmin.topic_stats)
    topic_config = blocking(AsyncAdmin.topic_config)
    topic_configs = blocking(AsyncAdmin.topic_configs)
    topic_groups = blocking(AsyncAdmin.topic_groups)
    create_topic = blocking(AsyncAdmin.create_topic)
    create_topics = blocking(AsyncAdmin.create_topics)
    create_static_topic = blocking(AsyncAdmin.create_static_topic)
    set_topic_permission = blocking(AsyncAdmin.set_topic_permission)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    delete_topic_in_broker = blocking(AsyncAdmin.delete_topic_in_broker)
    delete_topic_in_name_servers = blocking(AsyncAdmin.delete_topic_in_name_servers)
    register_topic = blocking(AsyncAdmin.register_topic)
    system_topics = blocking(AsyncAdmin.system_topics)
    broker_system_topics = blocking(AsyncAdmin.broker_system_topics)
    unit_topics = blocking(AsyncAdmin.unit_topics)
    unit_subscribed_topics = blocking(AsyncAdmin.unit_subscribed_topics)
    consume_queue = blocking(AsyncAdmin.consume_queue)

    # Groups

    groups = blocking(AsyncAdmin.groups)
    group_config = blocking(AsyncAdmin.group_config)
    group_configs = blocking(AsyncAdmin.group_configs)
    group_topics = blocking(AsyncAdmin.group_topics)
    group_progress = blocking(AsyncAdmin.group_progress)
    broker_progress = blocking(AsyncAdmin.broker_progress)
    consume_time_spans = blocking(AsyncAdmin.consume_time_spans)
    subscription = blocking(AsyncAdmin.subscription)
    create_group = blocking(AsyncAdmin.create_group)
    create_groups = blocking(AsyncAdmin.create_groups)
    delete_group = blocking(AsyncAdmin.delete_group)
    set_group_readable = blocking(AsyncAdmin.set_group_readable)
    set_request_mode = blocking(AsyncAdmin.set_request_mode)

    # Offsets

    max_offset = blocking(AsyncAdmin.max_offset)
    min_offset = blocking(AsyncAdmin.min_offset)
    search_offset = blocking(AsyncAdmin.search_offset)
    earliest_store_time_ms = blocking(AsyncAdmin.earliest_store_time_ms)
    consumer_offset = blocking(AsyncAdmin.consumer_offset)
    consumer_offsets = blocking(AsyncAdmin.consumer_offsets)
    delay_offsets = blocking(AsyncAdmin.delay_offsets)
    update_consumer_offset = blocking(AsyncAdmin.update_consumer_offset)
    reset_offset = blocking(AsyncAdmin.reset_offset)
    reset_offsets = blocking(AsyncAdmin.reset_offsets)
    reset_offsets_by_time = blocking(AsyncAdmin.reset_offsets_by_time)
    reset_offsets_by_time_old = blocking(AsyncAdmin.reset_offsets_by_time_old)
    skip_accumulated = blocking(AsyncAdmin.skip_accumulated)
    clone_offsets = blocking(AsyncAdmin.clone_offsets)
    copy_offsets = blocking(AsyncAdmin.copy_offsets)
    correction_offsets = blocking(AsyncAdmin.correction_offsets)

    # Online producers and consumers

    consumer_connections = blocking(AsyncAdmin.consumer_connections)
    producer_connections = blocking(AsyncAdmin.producer_connections)
    producers = blocking(AsyncAdmin.producers)
    running_info = blocking(AsyncAdmin.running_info)
    running_infos = blocking(AsyncAdmin.running_infos)
    consumer_status = blocking(AsyncAdmin.consumer_status)

    # Messages

    message = blocking(AsyncAdmin.message)
    message_by_offset_id = blocking(AsyncAdmin.message_by_offset_id)
    message_by_offset = blocking(AsyncAdmin.message_by_offset)
    messages_by_key = blocking(AsyncAdmin.messages_by_key)
    messages_by_unique_key = blocking(AsyncAdmin.messages_by_unique_key)
    messages_by_queue = blocking(AsyncAdmin.messages_by_queue)
    message_track = blocking(AsyncAdmin.message_track)
    message_trace = blocking(AsyncAdmin.message_trace)
    consume_directly = blocking(AsyncAdmin.consume_directly)
    resume_transaction_checks = blocking(AsyncAdmin.resume_transaction_checks)

    # Brokers

    cluster_info = blocking(AsyncAdmin.cluster_info)
    clusters = blocking(AsyncAdmin.clusters)
    brokers = blocking(AsyncAdmin.brokers)
    broker_name = blocking(AsyncAdmin.broker_name)
    broker_members = blocking(AsyncAdmin.broker_members)
    broker_config = blocking(AsyncAdmin.broker_config)
    update_broker_config = blocking(AsyncAdmin.update_broker_config)
    broker_runtime = blocking(AsyncAdmin.broker_runtime)
    broker_stats = blocking(AsyncAdmin.broker_stats)
    clean_expired_consume_queues = blocking(AsyncAdmin.clean_expired_consume_queues)
    clean_unused_topics = blocking(AsyncAdmin.clean_unused_topics)
    delete_expired_commit_logs = blocking(AsyncAdmin.delete_expired_commit_logs)
    ha_status = blocking(AsyncAdmin.ha_status)
    broker_epochs = blocking(AsyncAdmin.broker_epochs)
    promote_broker = blocking(AsyncAdmin.promote_broker)
    demote_broker = blocking(AsyncAdmin.demote_broker)
    reset_master_flush_offset = blocking(AsyncAdmin.reset_master_flush_offset)
    add_broker = blocking(AsyncAdmin.add_broker)
    remove_broker = blocking(AsyncAdmin.remove_broker)
    cold_data_flow = blocking(AsyncAdmin.cold_data_flow)
    update_cold_data_flow = blocking(AsyncAdmin.update_cold_data_flow)
    remove_cold_data_flow = blocking(AsyncAdmin.remove_cold_data_flow)
    set_read_ahead_mode = blocking(AsyncAdmin.set_read_ahead_mode)
    set_broker_read_ahead_mode = blocking(AsyncAdmin.set_broker_read_ahead_mode)
    rocksdb_progress = blocking(AsyncAdmin.rocksdb_progress)
    export_rocksdb_config = blocking(AsyncAdmin.export_rocksdb_config)
    export_pop_records = blocking(AsyncAdmin.export_pop_records)
    switch_timer_engine = blocking(AsyncAdmin.switch_timer_engine)

    # Name servers

    kv = blocking(AsyncAdmin.kv)
    kv_list = blocking(AsyncAdmin.kv_list)
    set_kv = blocking(AsyncAdmin.set_kv)
    delete_kv = blocking(AsyncAdmin.delete_kv)
    order_conf = blocking(AsyncAdmin.order_conf)
    set_order_conf = blocking(AsyncAdmin.set_order_conf)
    set_broker_order_conf = blocking(AsyncAdmin.set_broker_order_conf)
    delete_order_conf = blocking(AsyncAdmin.delete_order_conf)
    name_server_config = blocking(AsyncAdmin.name_server_config)
    update_name_server_config = blocking(AsyncAdmin.update_name_server_config)
    wipe_write_permission = blocking(AsyncAdmin.wipe_write_permission)
    add_write_permission = blocking(AsyncAdmin.add_write_permission)

    # Controllers

    controller_metadata = blocking(AsyncAdmin.controller_metadata)
    sync_state_sets = blocking(AsyncAdmin.sync_state_sets)
    elect_master = blocking(AsyncAdmin.elect_master)
    clean_broker_data = blocking(AsyncAdmin.clean_broker_data)
    controller_config = blocking(AsyncAdmin.controller_config)
    update_controller_config = blocking(AsyncAdmin.update_controller_config)

    # Access control

    users = blocking(AsyncAdmin.users)
    user = blocking(AsyncAdmin.user)
    create_user = blocking(AsyncAdmin.create_user)
    update_user = blocking(AsyncAdmin.update_user)
    delete_user = blocking(AsyncAdmin.delete_user)
    acls = blocking(AsyncAdmin.acls)
    acl = blocking(AsyncAdmin.acl)
    create_acl = blocking(AsyncAdmin.create_acl)
    update_acl = blocking(AsyncAdmin.update_acl)
    delete_acl = blocking(AsyncAdmin.delete_acl)
    access_keys = blocking(AsyncAdmin.access_keys)
    access_key_versions = blocking(AsyncAdmin.access_key_versions)
    update_access_key = blocking(AsyncAdmin.update_access_key)
    delete_access_key = blocking(AsyncAdmin.delete_access_key)
    update_white_addresses = blocking(AsyncAdmin.update_white_addresses)
