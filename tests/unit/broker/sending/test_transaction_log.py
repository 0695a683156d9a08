"""The op queue's format, which ops are settled, and the verdicts on undecided halves."""

import pytest

from goddard.broker.sending.transaction_log import (
    CheckRules,
    DecidedHalves,
    Half,
    OpBatch,
    Verdict,
    decode_op,
    encode_op,
    immunity_ms,
    judge,
)

HOUR_MS = 3_600_000
RULES = CheckRules(timeout_ms=6_000, check_max=15, reserved_ms=72 * HOUR_MS)
NOW = 1_700_000_000_000


class TestFormat:
    @pytest.mark.parametrize(
        ("body", "offsets"),
        [
            (b"7", [7]),  # 4.9
            (b"7,", [7]),  # 5.x
            (b"1,0,3,4,22,", [1, 0, 3, 4, 22]),
            (b"", []),
            (b",,,", []),
            (b"x,5,-1,+3,1.5, 6,\xc2\xb2,9", [5, 9]),
            (b"9" * 20, []),
        ],
    )
    def test_every_format_is_read(self, body: bytes, offsets: list[int]) -> None:
        assert decode_op(body) == offsets

    def test_a_single_offset_is_written_in_the_format_of_all_versions(self) -> None:
        assert encode_op([42]) == b"42"
        assert encode_op([1, 0, 3]) == b"1,0,3"

    def test_a_batch_is_cut_into_ops_of_the_size_asked_for(self) -> None:
        batch = OpBatch()
        for offset in (100, 101, 102, 101, 103, 104):
            batch.add(offset)
        assert len(batch) == 5
        ops = batch.bodies(8)
        assert ops == [([100, 101], b"100,101"), ([102, 103], b"102,103"), ([104], b"104")]
        batch.discard([100, 101, 102])
        assert batch.bodies(100) == [([103, 104], b"103,104")]
        assert 103 in batch
        assert 100 not in batch


class TestDecided:
    def test_an_op_is_settled_when_its_halves_are_checked(self) -> None:
        decided = DecidedHalves(10, 0)
        decided.add_op(0, NOW, [10, 11])
        decided.add_op(1, NOW, [12])
        assert decided.settled_op_offset(None) == 0
        assert decided.take(10)
        assert decided.settled_op_offset(None) == 0
        assert decided.take(11)
        assert decided.settled_op_offset(None) == 1
        assert not decided.take(13)
        assert decided.take(12)
        assert not decided.take(12)
        assert decided.settled_op_offset(None) == 2

    def test_an_op_after_an_unsettled_op_is_not_settled(self) -> None:
        decided = DecidedHalves(0, 5)
        decided.add_op(5, NOW, [3])
        decided.add_op(6, NOW, [0])
        assert decided.take(0)
        assert decided.settled_op_offset(None) == 5

    def test_a_half_decided_twice_settles_both_ops(self) -> None:
        decided = DecidedHalves(0, 0)
        decided.add_op(0, NOW, [0])
        decided.add_op(1, NOW, [0])
        assert decided.take(0)
        assert decided.settled_op_offset(None) == 2

    def test_empty_and_foreign_ops_are_settled(self) -> None:
        decided = DecidedHalves(0, 0)
        decided.add_op(0, NOW, [])
        decided.add_op(4, NOW, [])  # the ones in between have left the log
        assert decided.settled_op_offset(None) == 5

    def test_without_ops_the_offset_stays(self) -> None:
        assert DecidedHalves(7, 3).settled_op_offset(None) == 3

    def test_a_decision_is_kept_until_every_older_half_is_checked(
        self,
    ) -> None:
        decided = DecidedHalves(10, 0)
        decided.add_op(0, NOW, [4])
        assert decided.has(4)
        assert not decided.take(4)
        # The check stopped at a half written before the op: the rewritten half 4 may follow.
        assert decided.settled_op_offset(NOW - 1) == 0
        assert decided.settled_op_offset(NOW) == 0
        assert decided.settled_op_offset(NOW + 1) == 1
        assert decided.settled_op_offset(None) == 1

    def test_a_decision_is_known_by_the_first_offset_after_its_half_is_checked(self) -> None:
        decided = DecidedHalves(0, 0)
        decided.add_op(0, NOW, [0, 1])
        assert decided.take(0)
        assert decided.has(0)
        assert decided.has(1)
        assert not decided.has(2)


def verdict(half: Half, *, rules: CheckRules = RULES, round_start_ms: int = NOW) -> Verdict:
    return judge(half, rules, now_ms=NOW, round_start_ms=round_start_ms)


def aged(age_ms: int, **fields: int) -> Half:
    stored_ms = min(NOW - age_ms, NOW - 1)
    return Half(born_timestamp_ms=NOW - age_ms, store_timestamp_ms=stored_ms, **fields)


class TestJudgement:
    @pytest.mark.parametrize(
        ("age_ms", "expected"),
        [
            (0, Verdict.LATER),
            (6_000, Verdict.LATER),
            (6_001, Verdict.CHECK),
            (
                -1,
                Verdict.CHECK,
            ),  # born in the future: a wrong clock must not delay its check for years
            (72 * HOUR_MS, Verdict.CHECK),
            (72 * HOUR_MS + 1, Verdict.DISCARD),
        ],
    )
    def test_age(self, age_ms: int, expected: Verdict) -> None:
        assert verdict(aged(age_ms)) is expected

    @pytest.mark.parametrize(
        ("times", "expected"),
        [(0, Verdict.CHECK), (14, Verdict.CHECK), (15, Verdict.DISCARD), (16, Verdict.DISCARD)],
    )
    def test_number_of_checks(self, times: int, expected: Verdict) -> None:
        assert verdict(aged(10_000, check_times=times)) is expected

    def test_a_half_is_checked_once_even_if_no_checks_are_allowed(self) -> None:
        rules = CheckRules(timeout_ms=0, check_max=0, reserved_ms=HOUR_MS)
        assert verdict(aged(10_000), rules=rules) is Verdict.CHECK
        assert verdict(aged(10_000, check_times=1), rules=rules) is Verdict.DISCARD

    def test_halves_rewritten_in_this_round_wait_for_the_next(self) -> None:
        half = Half(born_timestamp_ms=NOW - 60_000, store_timestamp_ms=NOW)
        assert verdict(half) is Verdict.LATER

    @pytest.mark.parametrize(
        ("age_ms", "seconds", "expected"),
        [
            (10_000, 60, Verdict.KEEP),
            (60_000, 60, Verdict.KEEP),
            (60_001, 60, Verdict.CHECK),
            (5_000, 1, Verdict.KEEP),  # never shorter than the default
            (6_001, 1, Verdict.CHECK),
            (6_001, -7, Verdict.CHECK),
            (-1, 60, Verdict.CHECK),
        ],
    )
    def test_immunity(self, age_ms: int, seconds: int, expected: Verdict) -> None:
        assert verdict(aged(age_ms, immunity_seconds=seconds)) is expected

    def test_immunity_has_a_minimum(self) -> None:
        assert immunity_ms(60, 6_000) == 60_000
        assert immunity_ms(0, 6_000) == 6_000
