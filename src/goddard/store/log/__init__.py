"""The commit log: segments, records, flushing, dispatch, reading, retention."""
