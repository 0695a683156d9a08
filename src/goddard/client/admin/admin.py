"""The administration of a cluster: everything that mqadmin does, as methods.

``Admin`` only keeps the connection. Its methods are the functions of the ``admin_*`` modules, each
of which takes it as its first argument.
"""

from typing import Self, Unpack

from goddard.client.admin import (
    access as admin_access,
)
from goddard.client.admin import (
    brokers as admin_brokers,
)
from goddard.client.admin import (
    clients as admin_clients,
)
from goddard.client.admin import (
    controllers as admin_controllers,
)
from goddard.client.admin import (
    groups as admin_groups,
)
from goddard.client.admin import (
    messages as admin_messages,
)
from goddard.client.admin import (
    name_servers as admin_nameservers,
)
from goddard.client.admin import (
    offsets as admin_offsets,
)
from goddard.client.admin import (
    topics as admin_topics,
)
from goddard.client.admin.checks import checks_arguments
from goddard.client.errors import NotRunningError, already_started
from goddard.client.identity import ProcessGuard
from goddard.client.options import SessionKeywords, check_range, session_options
from goddard.client.session import Session
from goddard.client.values import ServiceState
from goddard.clock import Clock, SystemClock


@checks_arguments
class Admin:
    """Looks after topics, groups, offsets, brokers and name servers.

    Brokers are given by name, which means the master, or by address ``host:port``. Where a method
    takes ``cluster`` or ``broker``, one of them has to be given, unless it says what happens
    without. Names are as brokers know them, a namespace included.

    A broker or name server that refuses is a BrokerError; one that does not answer a RemotingError.
    Methods that ask several servers ask all of them, and raise PartialFailureError if some fail: it
    says which, and has the answers of the others. Arguments that cannot be right are a ConfigError
    or a TypeError before anybody is asked.
    """

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        timeout_ms: int = 5_000,
        **options: Unpack[SessionKeywords],
    ) -> None:
        """``timeout_ms`` is for each request; what takes a broker long gets a multiple of it."""
        # The first attribute, so that it is what refuses to be pickled.
        self._guard = ProcessGuard()
        self._clock: Clock = options.get("clock") or SystemClock()
        self._timeout_ms = check_range("timeout_ms", timeout_ms, 1)
        # A session of its own: administration of several clusters from one process is common.
        self._options = session_options(name_servers, options).for_process()
        self._state = ServiceState.CREATED
        self._session: Session | None = None

    @property
    def state(self) -> ServiceState:
        """Where the client is in its life."""
        return self._state

    @property
    def client_id(self) -> str:
        """What servers know this client by: ``ip@instance``."""
        return self._options.client_id

    @property
    def clock(self) -> Clock:
        """Where the time comes from."""
        return self._clock

    @property
    def timeout_ms(self) -> int:
        """How long one request may take."""
        return self._timeout_ms

    @property
    def name_servers(self) -> tuple[str, ...]:
        """The addresses of the name servers."""
        return self.session.name_servers

    @property
    def session(self) -> Session:
        """What makes the requests; NotRunningError unless started."""
        self._guard.check()
        session = self._session
        if session is None:
            raise NotRunningError(
                f"The admin service state not OK, {self._state.value}",
                advice="use it inside 'async with Admin(...)', or call start() first",
            )
        return session

    async def start(self) -> None:
        """Begin to work. Nothing is asked of anybody yet; a client starts once."""
        self._guard.check()
        if self._state is not ServiceState.CREATED:
            raise already_started("admin", self._state.value)
        self._state = ServiceState.START_FAILED
        session = Session.shared(self._options, clock=self._clock)
        await session.start()
        self._session = session
        self._state = ServiceState.RUNNING

    async def stop(self) -> None:
        """Close the connections. Does nothing if the client is not running."""
        session, self._session = self._session, None
        if session is None:
            return
        self._state = ServiceState.STOPPED
        await session.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Topics

    topics = admin_topics.topics
    topic_route = admin_topics.topic_route
    topic_queues = admin_topics.topic_queues
    topic_clusters = admin_topics.topic_clusters
    topic_stats = admin_topics.topic_stats
    topic_config = admin_topics.topic_config
    topic_configs = admin_topics.topic_configs
    topic_groups = admin_topics.topic_groups
    create_topic = admin_topics.create_topic
    create_topics = admin_topics.create_topics
    create_static_topic = admin_topics.create_static_topic
    set_topic_permission = admin_topics.set_topic_permission
    delete_topic = admin_topics.delete_topic
    delete_topic_in_broker = admin_topics.delete_topic_in_broker
    delete_topic_in_name_servers = admin_topics.delete_topic_in_name_servers
    register_topic = admin_topics.register_topic
    system_topics = admin_topics.system_topics
    unit_topics = admin_topics.unit_topics
    unit_subscribed_topics = admin_topics.unit_subscribed_topics
    consume_queue = admin_topics.consume_queue

    # Groups

    groups = admin_groups.groups
    group_config = admin_groups.group_config
    group_configs = admin_groups.group_configs
    group_topics = admin_groups.group_topics
    group_progress = admin_groups.group_progress
    broker_progress = admin_groups.broker_progress
    consume_time_spans = admin_groups.consume_time_spans
    subscription = admin_groups.subscription
    create_group = admin_groups.create_group
    create_groups = admin_groups.create_groups
    delete_group = admin_groups.delete_group
    set_group_readable = admin_groups.set_group_readable
    set_request_mode = admin_groups.set_request_mode

    # Offsets

    max_offset = admin_offsets.max_offset
    min_offset = admin_offsets.min_offset
    search_offset = admin_offsets.search_offset
    earliest_store_time_ms = admin_offsets.earliest_store_time_ms
    consumer_offset = admin_offsets.consumer_offset
    consumer_offsets = admin_offsets.consumer_offsets
    delay_offsets = admin_offsets.delay_offsets
    update_consumer_offset = admin_offsets.update_consumer_offset
    reset_offset = admin_offsets.reset_offset
    reset_offsets = admin_offsets.reset_offsets
    reset_offsets_by_time = admin_offsets.reset_offsets_by_time
    reset_offsets_by_time_old = admin_offsets.reset_offsets_by_time_old
    skip_accumulated = admin_offsets.skip_accumulated
    clone_offsets = admin_offsets.clone_offsets
    correction_offsets = admin_offsets.correction_offsets

    # Producers and consumers that are online

    consumer_connections = admin_clients.consumer_connections
    producer_connections = admin_clients.producer_connections
    producers = admin_clients.producers
    running_info = admin_clients.running_info
    running_infos = admin_clients.running_infos
    consumer_status = admin_clients.consumer_status

    # Messages

    message = admin_messages.message
    message_by_offset_id = admin_messages.message_by_offset_id
    message_by_offset = admin_messages.message_by_offset
    messages_by_key = admin_messages.messages_by_key
    messages_by_unique_key = admin_messages.messages_by_unique_key
    messages_by_queue = admin_messages.messages_by_queue
    message_track = admin_messages.message_track
    message_trace = admin_messages.message_trace
    consume_directly = admin_messages.consume_directly
    resume_transaction_checks = admin_messages.resume_transaction_checks

    # Brokers

    cluster_info = admin_brokers.cluster_info
    clusters = admin_brokers.clusters
    brokers = admin_brokers.brokers
    broker_name = admin_brokers.broker_name
    broker_members = admin_brokers.broker_members
    broker_config = admin_brokers.broker_config
    update_broker_config = admin_brokers.update_broker_config
    broker_runtime = admin_brokers.broker_runtime
    broker_stats = admin_brokers.broker_stats
    clean_expired_consume_queues = admin_brokers.clean_expired_consume_queues
    clean_unused_topics = admin_brokers.clean_unused_topics
    delete_expired_commit_logs = admin_brokers.delete_expired_commit_logs
    ha_status = admin_brokers.ha_status
    broker_epochs = admin_brokers.broker_epochs
    reset_master_flush_offset = admin_brokers.reset_master_flush_offset
    add_broker = admin_brokers.add_broker
    remove_broker = admin_brokers.remove_broker
    cold_data_flow = admin_brokers.cold_data_flow
    update_cold_data_flow = admin_brokers.update_cold_data_flow
    remove_cold_data_flow = admin_brokers.remove_cold_data_flow
    set_read_ahead_mode = admin_brokers.set_read_ahead_mode
    rocksdb_progress = admin_brokers.rocksdb_progress
    export_rocksdb_config = admin_brokers.export_rocksdb_config
    export_pop_records = admin_brokers.export_pop_records

    # Name servers

    kv = admin_nameservers.kv
    kv_list = admin_nameservers.kv_list
    set_kv = admin_nameservers.set_kv
    delete_kv = admin_nameservers.delete_kv
    order_conf = admin_nameservers.order_conf
    set_order_conf = admin_nameservers.set_order_conf
    set_broker_order_conf = admin_nameservers.set_broker_order_conf
    delete_order_conf = admin_nameservers.delete_order_conf
    name_server_config = admin_nameservers.name_server_config
    update_name_server_config = admin_nameservers.update_name_server_config
    wipe_write_permission = admin_nameservers.wipe_write_permission
    add_write_permission = admin_nameservers.add_write_permission

    # Controllers

    controller_metadata = admin_controllers.controller_metadata
    sync_state_sets = admin_controllers.sync_state_sets
    elect_master = admin_controllers.elect_master
    clean_broker_data = admin_controllers.clean_broker_data
    controller_config = admin_controllers.controller_config
    update_controller_config = admin_controllers.update_controller_config

    # Who may do what

    users = admin_access.users
    user = admin_access.user
    create_user = admin_access.create_user
    update_user = admin_access.update_user
    delete_user = admin_access.delete_user
    acls = admin_access.acls
    acl = admin_access.acl
    create_acl = admin_access.create_acl
    update_acl = admin_access.update_acl
    delete_acl = admin_access.delete_acl
    access_keys = admin_access.access_keys
    access_key_versions = admin_access.access_key_versions
    update_access_key = admin_access.update_access_key
    delete_access_key = admin_access.delete_access_key
    update_white_addresses = admin_access.update_white_addresses
