from goddard.core.send_answers import (
    AnswerWriter as AnswerWriter,
)
