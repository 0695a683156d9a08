"""The clusters for the tests of the client work, and open sockets are detected."""

import asyncio

from goddard.testing.site import Site
from goddard.testing.wire import query_brokers, query_route
from tests.support.process_resources import open_tcp_sockets


def test_site_has_created_topics(site: Site) -> None:
    topic = site.create_topic("Sites", queues=3)
    assert set(query_brokers(site.namesrv)) == set(site.brokers)
    route = query_route(site.namesrv, topic)
    assert route is not None
    assert [data["writeQueueNums"] for data in route["queueDatas"]] == [3]


def test_legacy_site_has_created_topics(legacy_site: Site) -> None:
    topic = legacy_site.create_topic("LegacySites", queues=2)
    assert query_route(legacy_site.namesrv, topic) is not None


async def test_open_sockets_are_listed_until_they_are_closed(site: Site) -> None:
    host, port = site.namesrv.rsplit(":", 1)
    before = set(open_tcp_sockets())
    _, writer = await asyncio.open_connection(host, int(port))
    (mine,) = (ends for inode, ends in open_tcp_sockets().items() if inode not in before)
    assert mine.endswith(f"('{host}', {port})")
    writer.close()
    await writer.wait_closed()
    assert set(open_tcp_sockets()) == before
