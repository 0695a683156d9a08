"""A rule for handlers of tests, whose ends have no gate."""

from goddard.transport.rules import Action, Cluster, Rule

ANY_RULE = Rule(Action.GET, Cluster(), is_write=False, stores_messages=False)
