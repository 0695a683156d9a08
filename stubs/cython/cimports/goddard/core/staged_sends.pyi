from goddard.core.staged_sends import (
    OpenTopic as OpenTopic,
    Peer as Peer,
    StagedSends as StagedSends,
)
