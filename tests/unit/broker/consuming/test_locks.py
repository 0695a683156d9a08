"""Queue locks: who gets them, for how long, and which requests are refused."""

from pathlib import Path

import pytest

from goddard.broker.consuming.locks import LOCK_LIFE_MS, QueueLocks
from goddard.protocol import fastjson
from goddard.protocol.bodies import MessageQueue
from goddard.protocol.codes import CommandFlag, RequestCode, ResponseCode
from tests.support.consumer_harness import ConsumerHarness, tags

QUEUES = [MessageQueue(broker_name="b", queue_id=number, topic="T") for number in range(3)]


def test_a_queue_has_one_holder() -> None:
    locks = QueueLocks()
    assert locks.lock("G", "one", QUEUES[:2], 0) == QUEUES[:2]
    assert locks.lock("G", "two", QUEUES, 10) == QUEUES[2:]
    assert locks.holder("G", QUEUES[0], 10) == "one"
    assert locks.holder("G", QUEUES[2], 10) == "two"


def test_groups_do_not_share_locks() -> None:
    locks = QueueLocks()
    locks.lock("G", "one", QUEUES, 0)
    assert locks.lock("H", "two", QUEUES, 0) == QUEUES


def test_locking_again_renews() -> None:
    locks = QueueLocks()
    locks.lock("G", "one", QUEUES, 0)
    assert locks.lock("G", "one", QUEUES, LOCK_LIFE_MS - 1) == QUEUES
    assert locks.lock("G", "two", QUEUES, LOCK_LIFE_MS + 1) == []


def test_a_lock_that_is_not_renewed_expires() -> None:
    locks = QueueLocks()
    locks.lock("G", "one", QUEUES, 0)
    assert locks.is_any_held("G", LOCK_LIFE_MS)
    assert locks.lock("G", "two", QUEUES, LOCK_LIFE_MS) == []
    assert not locks.is_any_held("G", LOCK_LIFE_MS + 1)
    assert locks.holder("G", QUEUES[0], LOCK_LIFE_MS + 1) is None
    assert locks.lock("G", "two", QUEUES, LOCK_LIFE_MS + 1) == QUEUES


def test_only_the_holder_can_unlock() -> None:
    locks = QueueLocks()
    locks.lock("G", "one", QUEUES, 0)
    assert locks.unlock("G", "two", QUEUES) == 0
    assert locks.lock("G", "two", QUEUES, 1) == []
    assert locks.unlock("G", "one", QUEUES) == 3
    assert locks.lock("G", "two", QUEUES, 1) == QUEUES
    assert locks.unlock("nobody", "one", QUEUES) == 0


def test_expired_locks_are_forgotten() -> None:
    locks = QueueLocks()
    locks.lock("G", "one", QUEUES, 0)
    locks.lock("H", "one", QUEUES[:1], 1000)
    locks.expire(LOCK_LIFE_MS + 500)
    assert len(locks) == 1
    locks.unlock("H", "one", QUEUES)
    assert len(locks) == 0


async def test_requests_lock_and_unlock(tmp_path: Path) -> None:
    body = {
        "clientId": "one",
        "consumerGroup": "G",
        "mqSet": [{"brokerName": "b", "queueId": 1, "topic": "T"}],
        "onlyThisBroker": False,
    }
    with ConsumerHarness(tmp_path) as harness:
        consumer = harness.connect()
        answer = await consumer.ask(RequestCode.LOCK_BATCH_MQ, {}, fastjson.dumps(body))
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext_fields is None
        assert bytes(answer.body) == (
            b'{"lockOKMQSet":[{"brokerName":"b","queueId":1,"topic":"T"}]}'
        )
        assert harness.locks.is_any_held("G")
        other = {**body, "clientId": "two"}
        answer = await consumer.ask(RequestCode.LOCK_BATCH_MQ, {}, fastjson.dumps(other))
        assert bytes(answer.body) == b'{"lockOKMQSet":[]}'
        consumer.send(
            RequestCode.UNLOCK_BATCH_MQ, {}, fastjson.dumps(body), flag=CommandFlag.ONEWAY
        )
        answer = await consumer.ask(RequestCode.LOCK_BATCH_MQ, {}, fastjson.dumps(other))
        assert b'"queueId":1' in bytes(answer.body)
        harness.clock.advance(LOCK_LIFE_MS + 1)
        assert not harness.locks.is_any_held("G")
        harness.locks.scan()
        assert len(harness.locks.locks) == 0


async def test_members_are_notified_when_a_queue_is_unlocked(tmp_path: Path) -> None:
    with ConsumerHarness(tmp_path) as harness:
        one, two = harness.connect(), harness.connect()
        await one.heartbeat("G", tags("T"), client_id="one")
        await two.heartbeat("G", tags("T"), client_id="two")
        assert (await two.next_push()).fields == {"consumerGroup": "G"}
        body = b'{"clientId":"one","consumerGroup":"G","mqSet":[{"queueId":1,"topic":"T"}]}'
        await one.ask(RequestCode.LOCK_BATCH_MQ, {}, body)
        await one.ask(RequestCode.UNLOCK_BATCH_MQ, {}, body)
        assert (await two.next_push()).fields == {"consumerGroup": "G"}
        # No queue was locked: nobody is notified, or the notification would arrive with the next.
        await one.ask(RequestCode.UNLOCK_BATCH_MQ, {}, body)
        other = harness.connect()
        await other.heartbeat("Other", tags("T"), client_id="other")
        await other.next_push()
        assert two.peer.received.empty()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"{}",
        b'{"clientId":"x"}',
        b'{"clientId":"x","consumerGroup":"G","mqSet":7}',
        b'{"clientId":"x","consumerGroup":"G","mqSet":[{"queueId":99999999999}]}',
        b'{"clientId":"x","consumerGroup":"G","mqSet":[{"topic":"' + b"t" * 2000 + b'"}]}',
    ],
)
async def test_bad_bodies_are_refused(tmp_path: Path, body: bytes) -> None:
    with ConsumerHarness(tmp_path) as harness:
        consumer = harness.connect()
        answer = await consumer.ask(RequestCode.LOCK_BATCH_MQ, {}, body)
        assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
        assert len(harness.locks.locks) == 0


async def test_a_null_set_locks_nothing(tmp_path: Path) -> None:
    body = b'{"clientId":"x","consumerGroup":"G","mqSet":null}'
    with ConsumerHarness(tmp_path) as harness:
        answer = await harness.connect().ask(RequestCode.LOCK_BATCH_MQ, {}, body)
        assert bytes(answer.body) == b'{"lockOKMQSet":[]}'


def test_locks_expire_after_the_configured_time() -> None:
    locks = QueueLocks(5_000)
    assert locks.lock("G", "one", QUEUES, 0) == QUEUES
    assert locks.lock("G", "two", QUEUES, 5_000) == []
    assert locks.lock("G", "two", QUEUES, 5_001) == QUEUES
