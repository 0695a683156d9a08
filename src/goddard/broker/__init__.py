"""The broker: takes, keeps and hands out messages, and answers everything asked about them."""
