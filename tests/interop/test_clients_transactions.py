"""Official Java clients: transactions with check-back, and requests that want a reply."""

import time

import pytest

from goddard.testing.process import ProcessError, wait_until
from goddard.testing.site import Site
from tests.support.java_clients import JavaClients, Outgoing

pytestmark = pytest.mark.java

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"


def half(topic: str, body: bytes, local: str, checked: str = UNKNOWN) -> Outgoing:
    """A message of a transaction that ends as `local`, or as `checked` when checked later."""
    properties = {"local": local, "checked": checked}
    return Outgoing(topic, body, tag="T", keys=body.decode(), properties=properties)


def test_commit_and_rollback(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("transactions")
    producer = clients.producer(site.new_group("senders"), transactional=True)
    consumer = clients.push(site.new_group("readers"), topic)
    kept, dropped, last = producer.send(
        half(topic, b"kept", COMMIT),
        half(topic, b"dropped", ROLLBACK),
        half(topic, b"last", COMMIT),
        mode="transaction",
    )
    assert [each.outcome for each in (kept, dropped, last)] == [COMMIT, ROLLBACK, COMMIT]
    assert {each.status for each in (kept, dropped, last)} == {"SEND_OK"}
    received = {each.content: each for each in consumer.receive(2)}
    assert set(received) == {b"kept", b"last"}
    message = received[b"kept"]
    assert (message.id, message.topic, message.tag, message.keys) == (kept.id, topic, "T", "kept")
    assert (message.queue, message.properties["local"]) == (kept.queue, COMMIT)
    assert producer.checked() == []


def test_check_back(site: Site, clients: JavaClients) -> None:
    """The broker checks undecided messages; they are invisible until they are committed."""
    topic = site.create_topic("check-back")
    producer = clients.producer(site.new_group("senders"), transactional=True)
    consumer = clients.push(site.new_group("readers"), topic)
    sent = producer.send(
        half(topic, b"commit", UNKNOWN, COMMIT),
        half(topic, b"rollback", UNKNOWN, ROLLBACK),
        mode="transaction",
    )
    assert {each.outcome for each in sent} == {UNKNOWN}
    (received,) = consumer.receive(1, timeout=30)
    assert (received.content, received.id) == (b"commit", sent[0].id)
    checked = wait_until(
        lambda: producer.checked() if len(producer.checked()) >= 2 else None, 60, "both checked"
    )
    assert {each.content for each in checked} == {b"commit", b"rollback"}
    assert {each.topic for each in checked} == {topic}
    settled = len(checked)
    # Neither is checked again in the next round.
    assert consumer.receive(2, timeout=3) == [received]
    assert len(producer.checked()) == settled


def test_unanswered_check_is_repeated(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("repeated")
    producer = clients.producer(site.new_group("senders"), transactional=True)
    (sent,) = producer.send(half(topic, b"open", UNKNOWN, UNKNOWN), mode="transaction")

    def asked() -> list[str] | None:
        times = [
            each.properties["TRANSACTION_CHECK_TIMES"]
            for each in producer.checked()
            if each.content == b"open"
        ]
        return times if len(times) >= 3 else None

    assert wait_until(asked, 30, "asked three times")[:3] == ["1", "2", "3"]
    assert {each.properties["UNIQ_KEY"] for each in producer.checked()} == {sent.id}


def test_request_and_reply(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("questions")
    replier = clients.producer(site.new_group("repliers"))
    clients.push(site.new_group("readers"), topic, answer="reply", replier=replier.name)
    asker = clients.producer(site.new_group("askers"))
    for question in (b"one", b"two"):
        reply = asker.request(Outgoing(topic, question), timeout_ms=15_000)
        assert reply.content == b"re: " + question
        assert reply.properties["MSG_TYPE"] == "reply"


def test_request_without_a_reply_times_out(site: Site, clients: JavaClients) -> None:
    topic = site.create_topic("silence")
    asker = clients.producer(site.new_group("askers"))
    asker.send(Outgoing(topic, b"warm-up"))
    started = time.monotonic()
    with pytest.raises(ProcessError, match="RequestTimeoutException"):
        asker.request(Outgoing(topic, b"anybody?"), timeout_ms=1000)
    assert 0.9 < time.monotonic() - started < 30
