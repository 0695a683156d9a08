"""Subscriptions: tag expressions and SQL92 conditions."""
