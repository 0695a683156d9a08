"""The clients for threads and scripts: the asyncio clients, run on a loop in the background."""
