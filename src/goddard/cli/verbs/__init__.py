"""The commands for operators, one module per noun: ``goddard NOUN VERB``."""
