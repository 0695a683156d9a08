"""What happened to the messages that violations name, for people."""

from collections.abc import Sequence

from tests.support.history.record import History

_TOLD_VIOLATIONS = 3
_MOST_LINES = 12


def tell(history: History, violations: Sequence[str]) -> list[str]:
    """A line for each event of the messages in the first violations, in the order of time."""
    words = {word.strip(",:'") for text in violations[:_TOLD_VIOLATIONS] for word in text.split()}
    lines: list[tuple[float, str]] = []
    for send in history.sends:
        if send.value in words:
            lines.append((send.began, f"{send.producer} sends {send.value}"))
            ended = "" if send.ended is None else f"{send.queue} {send.offset} {send.stored_by}"
            lines.append((send.ended or send.began, f"{send.value} {send.outcome.value} {ended}"))
    for each in history.deliveries:
        if each.value in words:
            how = "consumes" if each.is_success else "refuses"
            text = f"{each.member} {how} {each.value} of {each.queue} {each.offset}"
            lines.append((each.began, text))
    lines.sort()
    return [f"{at:10.3f} {text}" for at, text in lines[:_MOST_LINES]]
