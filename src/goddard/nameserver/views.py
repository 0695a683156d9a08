"""Read-only views of the route tables: lists of topics, brokers and clusters, and zone routes.

Pure. Brokers and clusters are listed in the order of a Java HashMap.
"""

from collections.abc import Callable
from typing import Final

from goddard.nameserver.javamap import in_map_order
from goddard.nameserver.routes import RouteTable
from goddard.protocol.bodies import BrokerMemberGroup, ClusterInfo, TopicList, TopicRoute
from goddard.protocol.codes import MASTER_ID

_UNIT_FLAG: Final = 1
_UNIT_SUB_FLAG: Final = 2


def cluster_info(routes: RouteTable) -> ClusterInfo:
    return ClusterInfo(
        broker_addr_table={name: routes.brokers[name] for name in in_map_order(routes.brokers)},
        cluster_addr_table={
            name: in_map_order(sorted(routes.clusters[name]))
            for name in in_map_order(routes.clusters)
        },
    )


def member_group(routes: RouteTable, cluster: str, broker_name: str) -> BrokerMemberGroup:
    data = routes.brokers.get(broker_name)
    members = {} if data is None else dict(data.broker_addrs)
    return BrokerMemberGroup(cluster=cluster, broker_name=broker_name, broker_addrs=members)


def all_topics(routes: RouteTable) -> TopicList:
    return TopicList(topic_list=list(routes.topic_queues))


def topics_of_cluster(routes: RouteTable, cluster: str) -> TopicList:
    names = routes.clusters.get(cluster, set())
    return TopicList(
        topic_list=[t for t, queues in routes.topic_queues.items() if names & queues.keys()]
    )


def system_topics(routes: RouteTable) -> TopicList:
    """The topics named after each cluster and each broker."""
    names = sorted({*routes.clusters, *(n for names in routes.clusters.values() for n in names)})
    addresses = (a for data in routes.brokers.values() for a in data.broker_addrs.values())
    return TopicList(topic_list=in_map_order(names), broker_addr=next(addresses, None))


def unit_topics(routes: RouteTable) -> TopicList:
    return _flagged_topics(routes, lambda flag: bool(flag & _UNIT_FLAG))


def unit_sub_topics(routes: RouteTable) -> TopicList:
    return _flagged_topics(routes, lambda flag: bool(flag & _UNIT_SUB_FLAG))


def unit_sub_topics_outside_unit(routes: RouteTable) -> TopicList:
    return _flagged_topics(
        routes, lambda flag: bool(flag & _UNIT_SUB_FLAG) and not flag & _UNIT_FLAG
    )


def _flagged_topics(routes: RouteTable, is_wanted: Callable[[int], bool]) -> TopicList:
    return TopicList(
        topic_list=[
            topic
            for topic, queues in routes.topic_queues.items()
            if is_wanted(next(iter(queues.values())).topic_sys_flag)
        ]
    )


def in_zone(route: TopicRoute, zone: str) -> TopicRoute:
    """The part of a route that a client in a zone should use.

    A broker without a master is kept in any zone, so that clients can read from its slaves.
    """
    kept = [
        data
        for data in route.broker_datas
        if MASTER_ID not in data.broker_addrs or (data.zone_name or "").lower() == zone.lower()
    ]
    dropped = [data for data in route.broker_datas if data not in kept]
    dropped_names = {data.broker_name for data in dropped}
    dropped_addresses = {address for data in dropped for address in data.broker_addrs.values()}
    return TopicRoute(
        order_topic_conf=route.order_topic_conf,
        queue_datas=[data for data in route.queue_datas if data.broker_name not in dropped_names],
        broker_datas=kept,
        filter_server_table={
            address: servers
            for address, servers in route.filter_server_table.items()
            if address not in dropped_addresses
        },
        topic_queue_mapping_by_broker=route.topic_queue_mapping_by_broker,
    )
