"""Mistakes by hand, with goddard and mqadmin: one line on standard error, and an exit code.

None of them needs a cluster: the mistake is found before, or nothing listens at the address.
"""

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine

NOWHERE = "127.0.0.1:1"

# The command, the exit code, and what the line has.
MISTAKES: list[tuple[str, int, str]] = [
    ("topik list", 2, "No such command 'topik'; did you mean topic?"),
    ("topics", 2, "No such command 'topics'; did you mean topic?"),
    ("grop list", 2, "did you mean group?"),
    ("admin", 2, "No such command 'admin'"),
    ("topic", 2, ""),
    ("topic lst", 2, "No such command 'lst'; did you mean list?"),
    ("topic describe orders", 2, "there are create, delete, list"),
    ("topic create", 2, "Missing argument 'TOPIC'"),
    ("topic create a b", 2, "unexpected extra argument"),
    ("topic create a --querues 3", 2, "--queues"),
    ("topic create a --queues many", 2, "'many' is not a valid"),
    ("topic create a --queues 0", 2, "0 is not in the range"),
    ("topic create a --queues 70000", 2, "70000 is not in the range"),
    ("topic create a --permission x", 2, "'x' is not one of"),
    ("topic create a --attribute x", 2, "--attribute 'x' is not key=value"),
    ("topic create a/b --cluster c", 1, "no name server answers"),
    ("topic update a", 2, "nothing to change; give --queues"),
    ("topic offsets a --time yesterday", 2, "'yesterday' is not a time; write now, -1h30m"),
    ("topic list --format xml", 2, "'xml' is not one of"),
    ("topic list --timeout 0", 2, "not in the range"),
    ("topic list --timeout soon", 2, "'soon' is not a number of seconds"),
    ("topic list --timeout nan", 2, "'nan' is not a number of seconds"),
    ("topic list --timeout inf", 2, "'inf' is not a number of seconds"),
    ("topic list --timeout 1e308", 2, "not in the range 0.1<=x<=86400"),
    ("topic list --timeout 1e9", 2, "not in the range 0.1<=x<=86400"),
    ("top -o - -i nan", 2, "'nan' is not a number of seconds"),
    ("doctor --seconds nan", 2, "'nan' is not a number of seconds"),
    ("group watch a --interval nan", 2, "'nan' is not a number of seconds"),
    ("bench produce a --seconds nan", 2, "'nan' is not a number of seconds"),
    ("topic list --context nope", 2, "there is no context 'nope'; known contexts: none"),
    ("topic list -n localhost", 2, "localhost"),
    ("topic list -n", 2, "requires an argument"),
    ("topic list --namesrv=", 2, "-n is empty; write it as HOST:PORT"),
    ("-n h:1 topic list", 2, "put -n after the command: goddard topic list -n h:1"),
    (
        "topic --timeout=3 show a",
        2,
        "put --timeout after the command: goddard topic show --timeout=3",
    ),
    ("-n h:1 top -o -", 2, "put -n after the command: goddard top -n h:1 -o -"),
    ("--foo topic list", 2, "No such option '--foo'"),
    ("-n h:1", 2, "No such option '-n'"),
    ("-n h:1 topik list", 2, "No such option '-n'"),
    ("topic list -n \udcff:1", 2, "'-n' / '--namesrv' is not UTF-8 text"),
    ("topic list", 1, "no name server answers"),
    ("topic show a", 1, "no name server answers"),
    ("topic delete a --yes", 1, "no name server answers"),
    ("group", 2, ""),
    ("group lag", 2, "Missing argument 'GROUP'"),
    ("group lagg a", 2, "did you mean lag?"),
    ("group update a", 2, "nothing to change; give --retries"),
    ("group create a --retries x", 2, "'x' is not a valid integer"),
    ("group create a --attribute =v", 2, "'=v' is not key=value"),
    ("group reset a", 2, "give exactly one of --to, --to-time, --shift and --to-file"),
    ("group reset a --to earliest --shift 1", 2, "give exactly one of"),
    ("group reset a --to begin", 2, "--to is earliest, latest or an offset, not 'begin'"),
    ("group reset a --to 5", 2, "--to with an offset needs --topic"),
    ("group reset a --to-file nope.csv --topic t", 2, "'nope.csv' does not exist"),
    ("group reset a --shift far", 2, "'far' is not a valid integer"),
    ("top -o /missing/x", 2, "-o: there is no folder /missing"),
    ("top -o /", 2, "'/' is a directory"),
    ("group watch a --interval 0", 2, "not in the range"),
    ("consume", 2, "Missing argument 'TOPIC'"),
    ("consume a --range tomorrow", 2, "'tomorrow' is not a range; write start, end"),
    ("consume a --range @tomorrow", 2, "is not a range"),
    ("consume a --follow --range 0:1", 2, "--follow has no end; give --range only where to begin"),
    ("consume a --follow --range @-1h:now", 2, "--follow has no end"),
    ("consume a --follow --range 5", 1, "no name server answers"),
    ("consume a --tag A --sql x>1", 2, "give --tag or --sql, not both"),
    ("consume a --group g --range start", 2, "--range has no effect with --group"),
    ("consume a --group g --queue b:0", 2, "--queue has no effect with --group"),
    ("consume a --template %q", 2, "unknown field '%q'"),
    ("consume a --template %s --format json", 2, "give --template or --format json, not both"),
    ("consume a --template %s\udcff", 2, "'-f' / '--template' is not UTF-8 text"),
    ("consume a --sql a>", 2, "--sql: "),
    ("consume a --count 0", 2, "not in the range"),
    ("consume a --exec true", 2, "--exec needs --group, whose progress is saved"),
    ("consume a --retries 2", 2, "--retries has no effect without --exec"),
    ("consume a -g g --exec cat -f %s", 2, "give --template or --exec, not both"),
    ("produce", 2, "Missing argument 'TOPIC'"),
    ("produce a --input xml", 2, "'xml' is not one of"),
    ("produce a --property x", 2, "--property 'x' is not key=value"),
    ("produce a --delay-level 19", 2, "19 is not in the range"),
    ("message find a", 2, "give exactly one of --id, --key, --at and --from"),
    ("message find a --id x --key y", 2, "give exactly one of"),
    ("message find a --id x --to now", 2, "--to has no effect without --from or --key"),
    ("message find a --at b:0:1 --tag A", 2, "--tag has no effect without --from"),
    ("message find a --key k --tag A", 2, "--tag has no effect without --from"),
    ("message find a --key k --to now", 1, "no name server answers"),
    ("message send a", 2, "Missing argument 'BODY'"),
    (
        "message send a \udcff",
        2,
        "it is not UTF-8; send bytes with 'goddard produce --input whole'",
    ),
    ("message send a b -p KEYS=5", 2, "--property: KEYS is reserved; use --key"),
    ("message send a b -p TAGS=5", 2, "--property: TAGS is reserved; use --tag"),
    ("message send a b -p WAIT=1", 2, "--property: WAIT is reserved by RocketMQ"),
    ("message send a b -p c=", 2, "can not be null or blank string"),
    ("message send \udcff b", 2, "'TOPIC' is not UTF-8 text"),
    ("message send a b --key ok --key \udcff", 2, "'-k' / '--key' is not UTF-8 text"),
    ("message trace", 2, "Missing argument 'ID'"),
    ("dlq resend a", 2, "give --id for some messages, --all, or --file"),
    ("dlq resend a --all --id x", 2, "give --id for some messages, --all, or --file"),
    ("dlq resend a --file nope.jsonl", 2, "'nope.jsonl': No such file or directory"),
    ("dlq resend a --all --file -", 2, "give --id for some messages, --all, or --file"),
    ("dlq resend a --yes --file /dev/null", 1, "no name server answers"),
    ("dlq show a --range x", 2, "'x' is not a range"),
    ("dlq purge a", 2, "No such command 'purge'"),
    ("client show a", 2, "Missing argument 'CLIENT'"),
    ("broker lst", 2, "did you mean list?"),
    ("broker config get", 2, "Missing argument 'BROKER'"),
    ("broker config set b", 2, "Missing argument 'NAME=VALUE...'"),
    ("broker config set b maxMessageSize", 2, "'maxMessageSize' is not key=value"),
    ("broker permission wipe b", 2, "producers will no longer send to b; add --yes to do it"),
    ("config get A", 2, "Missing argument 'KEY'"),
    ("config name-servers x", 2, "'x' is not key=value"),
    ("context use nope", 2, "there is no context 'nope'"),
    ("context set a", 2, "Missing option '-n' / '--namesrv'"),
    ("context set a -n nonsense", 2, "nonsense"),
    ("context set \udcff -n h:1", 2, "'NAME' is not UTF-8 text"),
    ("context set a -n h:1 --trust ca.pem", 2, "--trust has no effect without --tls"),
    ("context set a -n h:1 --tls --trust ca.pem", 2, "there is no file ca.pem"),
    ("context set a -n h:1 --security-token t", 2, "no effect without --access-key"),
    ("context set a -n h:1 --access-key k", 2, "no secret key; set GODDARD_SECRET_KEY"),
    ("context show", 2, "no context is selected"),
    ("user", 2, ""),
    ("user lst", 2, "No such command 'lst'; did you mean list?"),
    ("user create ann", 2, "no password; set GODDARD_USER_PASSWORD or write it to standard input"),
    ("user create ann --type super", 2, "'super' is not one of"),
    ("user update ann", 2, "nothing to change; give --password, --type, --enable or --disable"),
    ("acl grant User:ann Topic:a", 2, "Missing option '--action'"),
    ("acl grant User:ann Topic:a --action Write", 2, "'Write' is not one of"),
    ("acl delete", 2, "Missing argument 'SUBJECT'"),
]


@pytest.mark.parametrize(("command", "code", "text"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_gets_one_line(command: str, code: int, text: str, tmp_path: Path) -> None:
    goddard = CommandLine(
        {"NAMESRV_ADDR": NOWHERE, "GODDARD_CONTEXTS": str(tmp_path / "contexts.json")}
    )
    result = goddard(*command.split())
    assert (result.code, text in result.err) == (code, True), result.err
    if text:
        assert result.out == ""
        assert result.err.count("\n") == 1, result.err
        assert len(result.err) < 400
    assert "Traceback" not in result.err


# The same for mqadmin, whose official form prints stack traces and returns 0.
MQADMIN_MISTAKES: list[tuple[str, int, str]] = [
    ("updateTopik", 2, "there is no verb updateTopik; did you mean updateTopic?"),
    ("help updateTopik", 2, "there is no verb updateTopik; did you mean updateTopic?"),
    ("frobnicate", 2, "there is no verb frobnicate; mqadmin help lists all"),
    ("updateTopic", 2, "-t (--topic) must be given"),
    ("updateTopic -t a", 2, "-b (--brokerAddr) or -c (--clusterName) must be given"),
    ("updateTopic -t a -c C -r x", 2, "-r (--readQueueNums) takes a whole number from 0 on"),
    ("updateTopic -t a -c C --foo", 2, "there is no option --foo"),
    ("updateTopic -t a/b -c C", 2, "contains illegal characters"),
    ("updateTopic -t", 2, "-t (--topic) needs a value"),
    ("topicList -n localhost", 2, "'localhost' is not an address; write it as host:port"),
    ("topicList", 1, "no name server answers; at 127.0.0.1:1"),
    ("clusterList", 1, "no name server answers; at 127.0.0.1:1"),
    ("brokerStatus -b 127.0.0.1:1", 1, "no connection to 127.0.0.1:1"),
    ("deleteTopic -t a", 2, "-c (--clusterName) must be given"),
    ("updateKvConfig -s a", 2, "-k (--key) and -v (--value) must be given"),
    ("resetOffsetByTime -g g -t a -s someday", 2, "-s (--timestamp) takes now"),
    ("switchTimerEngine -b 127.0.0.1:1 -e T", 2, "-e (--engineType) takes R or F, not 'T'"),
    ("queryMsgByKey -t a", 2, "-k (--msgKey) must be given"),
    ("sendMessage -t a -p \udcff", 2, "-p (--body) is not UTF-8 text"),
]


@pytest.mark.parametrize(
    ("command", "code", "text"), MQADMIN_MISTAKES, ids=[m[0] for m in MQADMIN_MISTAKES]
)
def test_a_mistake_with_mqadmin_gets_one_line(
    command: str, code: int, text: str, tmp_path: Path
) -> None:
    contexts = str(tmp_path / "contexts.json")
    mqadmin = CommandLine({"NAMESRV_ADDR": NOWHERE, "GODDARD_CONTEXTS": contexts}, "mqadmin")
    result = mqadmin(*command.split())
    assert (result.code, text in result.err) == (code, True), result.err
    assert result.out == ""
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith("mqadmin")


def test_files_that_are_not_utf8_get_one_line(tmp_path: Path) -> None:
    offsets, tools = tmp_path / "offsets.csv", tmp_path / "conf" / "tools.yml"
    tools.parent.mkdir()
    for file in (offsets, tools):
        file.write_bytes(b"\xff\xfe")
    env: dict[str, str | None] = {"NAMESRV_ADDR": NOWHERE, "ROCKETMQ_HOME": str(tmp_path)}
    reset = ("group", "reset", "a", "--topic", "t", "--to-file", str(offsets))
    results = CommandLine(env)(*reset), CommandLine(env, "mqadmin")("topicList")
    for result, file in zip(results, (offsets, tools), strict=True):
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
        assert f"{file} is not UTF-8 text" in result.err


def test_without_a_name_server_the_ways_to_give_one_are_named(tmp_path: Path) -> None:
    goddard = CommandLine({"GODDARD_CONTEXTS": str(tmp_path / "contexts.json")})
    result = goddard("topic", "list")
    assert result.code == 2
    assert result.err == (
        "goddard topic list: no name server is given; use -n HOST:PORT, set NAMESRV_ADDR, or "
        "select a context with 'goddard context use NAME'\n"
    )
