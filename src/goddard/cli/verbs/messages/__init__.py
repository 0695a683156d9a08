"""Commands that send, print, find and resend messages."""
