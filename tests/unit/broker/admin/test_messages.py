"""Queries for messages by key and by offset, and for queue entries."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from goddard.protocol.codes import RequestCode, ResponseCode, SerializeType
from goddard.store.errors import QueryCancelledError
from goddard.store.log.reading import QueryResult
from tests.support.admin_harness import AdminHarness, body_of
from tests.support.consumer_harness import bodies_of, records_of, sql, tags
from tests.support.store import put_forged

QUERY = RequestCode.QUERY_MESSAGE
VIEW = RequestCode.VIEW_MESSAGE_BY_ID
QUEUE = RequestCode.QUERY_CONSUME_QUEUE
FOREVER = 2**63 - 1


def by_key(key: str | None, /, **changes: Any) -> dict[str, Any]:
    return {
        "topic": "T",
        "key": key,
        "maxNum": 64,
        "beginTimestamp": 0,
        "endTimestamp": FOREVER,
        "_UNIQUE_KEY_QUERY": "false",
        "indexType": "K",
    } | changes


class TestByKey:
    async def test_words_unique_keys_and_tags(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.put("T", b"1", keys="a b", unique_key="U1", tags="TagA")
            harness.put("T", b"2", keys="b", unique_key="U2", tags="TagB")
            admin = harness.connect()
            for key, changes, expected in (
                ("a", {}, [b"1"]),
                ("b", {}, [b"1", b"2"]),
                ("b", {"maxNum": 1}, [b"2"]),
                ("U2", {"_UNIQUE_KEY_QUERY": "true", "indexType": "U"}, [b"2"]),
                ("U1", {"_UNIQUE_KEY_QUERY": None, "indexType": None}, [b"1"]),
                ("TagA", {"indexType": "T"}, [b"1"]),
            ):
                answer = await admin.ask(QUERY, by_key(key, **changes))
                assert (answer.code, sorted(bodies_of(answer))) == (0, expected)
                assert answer.fields["indexLastUpdateTimestamp"] == str(harness.clock.now_ms())

    async def test_the_loop_serves_others_during_a_query(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.put("T", b"1", keys="a")
            admin = harness.connect()
            query = harness.store.query
            may_begin = threading.Event()

            def find_later(*args: Any, **options: Any) -> QueryResult:
                assert may_begin.wait(5)
                return query(*args, **options)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(harness.store, "query", find_later)
                opaque = admin.send(QUERY, by_key("a"))
                assert (await admin.ask(VIEW, {"offset": 0})).code == 0
                may_begin.set()
                assert bodies_of(await admin.answer(opaque)) == [b"1"]

    async def test_a_query_ends_with_its_connection(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.put("T", b"1", keys="a")
            admin = harness.connect()
            is_running, ended = threading.Event(), threading.Event()

            def find(*_: object, is_cancelled: Callable[[], bool], **__: object) -> QueryResult:
                is_running.set()
                while not is_cancelled():
                    time.sleep(0.001)
                ended.set()
                raise QueryCancelledError("cancelled")

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(harness.store, "query", find)
                admin.send(QUERY, by_key("a"))
                assert await asyncio.to_thread(is_running.wait, 5)
                admin.peer.transport.abort()
                assert await asyncio.to_thread(ended.wait, 5)

    async def test_more_queries_than_may_wait_are_refused(self, tmp_path: Path) -> None:
        properties = {"queryThreadPoolQueueCapacity": "3"}
        with AdminHarness(tmp_path, properties=properties) as harness:
            harness.put("T", b"1", keys="a")
            admin = harness.connect()
            opaques = [admin.send(QUERY, by_key("a")) for _ in range(5)]
            answers = [await admin.answer(opaque) for opaque in opaques]
            assert [answer.code for answer in answers] == [0, 0, 0, 2, 2]
            assert answers[3].remark == "[OVERLOAD]system busy, start flow control for a while"

    async def test_queries_without_result(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.put("T", b"1", keys="a")
            admin = harness.connect()
            for changes in (
                {"key": "x"},
                {"topic": "X"},
                {"indexType": "T"},
                {"maxNum": 0},
                {"maxNum": -1},
                {"beginTimestamp": FOREVER, "endTimestamp": 0},
                {"beginTimestamp": -FOREVER, "endTimestamp": -FOREVER},
                {"key": ""},
            ):
                answer = await admin.ask(QUERY, by_key("a", **changes))
                assert answer.code == ResponseCode.QUERY_NOT_FOUND, changes
                assert answer.remark == "can not find message, maybe time range not correct"
                assert set(answer.fields) == {
                    "indexLastUpdateTimestamp",
                    "indexLastUpdatePhyoffset",
                }

    async def test_the_answer_fits_into_a_frame(self, tmp_path: Path) -> None:
        size = 6 << 20
        with AdminHarness(tmp_path, segment_bytes=64 << 20, max_message_bytes=8 << 20) as harness:
            for _ in range(4):
                harness.put("T", bytes(size), keys="big")
            answer = await harness.connect().ask(QUERY, by_key("big"))
            assert [len(record.body) for record in records_of(answer)] == [size, size]

    @pytest.mark.parametrize(
        "changes",
        [
            {"topic": None},
            {"key": None},
            {"maxNum": None},
            {"maxNum": "many"},
            {"maxNum": 2**31},
            {"beginTimestamp": "x"},
            {"endTimestamp": 2**63},
        ],
    )
    async def test_malformed(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        with AdminHarness(tmp_path) as harness:
            answer = await harness.connect().ask(QUERY, by_key("a", **changes))
            assert answer.code == ResponseCode.SYSTEM_ERROR


class TestByPlace:
    async def test_a_record_and_its_bytes(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.put("T", b"1", b"2")
            second = harness.store.get("T", 0, 1, 1).records[0]
            admin = harness.connect()
            for serialize_type in SerializeType:
                offset = records_of(
                    await admin.ask(VIEW, {"offset": 0}, serialize_type=serialize_type)
                )[0].physical_offset
                assert offset == 0
            answer = await admin.ask(VIEW, {"topic": "T", "offset": len(second)})
            assert (answer.code, bytes(answer.body)) == (0, bytes(second))

    @pytest.mark.parametrize("offset", [3, -1, 10**9, 2**63 - 1, -(2**63)])
    async def test_no_record_begins_there(self, tmp_path: Path, offset: int) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.put("T", b"1")
            answer = await harness.connect().ask(VIEW, {"offset": offset})
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == f"can not find message by the offset, {offset}"

    async def test_a_record_inside_of_a_body_is_not_viewed(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            forged = put_forged(harness.store, "Secret", b"")
            answer = await harness.connect().ask(VIEW, {"offset": forged})
            assert answer.remark == f"can not find message by the offset, {forged}"

    @pytest.mark.parametrize("offset", [None, "", "x", 2**63])
    async def test_malformed(self, tmp_path: Path, offset: Any) -> None:
        with AdminHarness(tmp_path) as harness:
            answer = await harness.connect().ask(VIEW, {"offset": offset})
            assert answer.code == ResponseCode.SYSTEM_ERROR


def entries(index: int, count: int = 3, **changes: Any) -> dict[str, Any]:
    return {"topic": "T", "queueId": 0, "index": index, "count": count} | changes


class TestQueues:
    async def test_entries(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.put("T", b"1", b"2", b"3", tags="A")
            admin = harness.connect()
            answer = await admin.ask(QUEUE, entries(1))
            size = len(harness.store.get("T", 0, 0, 1).records[0])
            assert answer.remark == "not set any response code"
            assert body_of(answer) == {
                "maxQueueIndex": 3,
                "minQueueIndex": 0,
                "queueData": [
                    {"eval": False, "physicOffset": size * n, "physicSize": size, "tagsCode": 65}
                    for n in (1, 2)
                ],
            }
            assert len(body_of(await admin.ask(QUEUE, entries(0, 1)))["queueData"]) == 1
            for count in (0, -1, -(2**31)):
                assert body_of(await admin.ask(QUEUE, entries(0, count)))["queueData"] == []
            whole = body_of(await admin.ask(QUEUE, entries(0, 2**31 - 1)))
            assert len(whole["queueData"]) == 3

    @pytest.mark.parametrize("index", [3, 99, -1, 2**63 - 1, -(2**63)])
    async def test_beyond_the_ends(self, tmp_path: Path, index: int) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.put("T", b"1", b"2", b"3")
            answer = await harness.connect().ask(QUEUE, entries(index))
            assert (answer.code, answer.remark, answer.body) == (
                0,
                f"Index {index} of 0@T is not exist!",
                b"",
            )

    async def test_no_such_queue(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path) as harness:
            harness.put("T", b"1")
            admin = harness.connect()
            for changes, what in (
                ({"queueId": 7}, "7@T"),
                ({"queueId": -1}, "-1@T"),
                ({"topic": "X"}, "0@X"),
                ({"topic": None}, "0@"),
            ):
                answer = await admin.ask(QUEUE, entries(0, **changes))
                assert (answer.code, answer.remark) == (1, f"{what} is not exist!")

    async def test_subscription_and_filter_of_a_group(self, tmp_path: Path) -> None:
        with AdminHarness(tmp_path, properties={"enablePropertyFilter": "true"}) as harness:
            harness.put("T", b"1")
            harness.put("S", b"1")
            consumer = harness.connect()
            await consumer.heartbeat("G", tags("T", "A"), sql("S", "a > 1"))
            admin = harness.connect()
            found = body_of(await admin.ask(QUEUE, entries(0, consumerGroup="G")))
            assert found["subscriptionData"]["subString"] == "A"
            assert found["filterData"] == "null"
            found = body_of(await admin.ask(QUEUE, entries(0, topic="S", consumerGroup="G")))
            assert '"expression": "a > 1"' in found["filterData"]
            found = body_of(await admin.ask(QUEUE, entries(0, consumerGroup="H")))
            assert found["filterData"] == "H@T is not online!"
