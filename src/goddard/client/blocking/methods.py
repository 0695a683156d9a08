"""Blocking methods, made from the methods of the asyncio classes.

    class Producer(BlockingClient[AsyncProducer]):
        send = blocking(AsyncProducer.send)

``ParamSpec`` preserves parameters and results, so type checkers see every signature, and
``functools.wraps`` does the same for ``help`` and ``inspect``. The method that runs is looked up by
its name on the asyncio object, so that the methods of its subclasses are found.
"""

import re
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from goddard.client.blocking.client import BlockingClient

P = ParamSpec("P")
T = TypeVar("T")
Core = TypeVar("Core")
Client = TypeVar("Client", bound=BlockingClient[Any])


def docstring(source: object) -> str | None:
    """The docstring of an asyncio class or method, with the words of blocking code."""
    text = source.__doc__
    return None if text is None else in_blocking_words(text)


def in_blocking_words(text: str) -> str:
    """A text about asyncio code, with ``async`` and ``await`` left out."""
    return re.sub(r"\basync (?=with\b|for\b)|\bawait ", "", text)


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingClient[Any], P], T]:
    """A method that runs a coroutine method on the loop and waits for its result."""
    name = method.__name__

    @wraps(method)
    def call(self: BlockingClient[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        begin: Callable[[], Coroutine[Any, Any, T]] = partial(
            getattr(self._core, name), *args, **kwargs
        )
        return self._run(begin)

    call.__doc__ = docstring(method)
    return call


def on_loop(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[BlockingClient[Any], P], T]:
    """A method that calls a plain method, on the loop if the client runs."""
    name = method.__name__

    @wraps(method)
    def call(self: BlockingClient[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        function: Callable[[], T] = partial(getattr(self._core, name), *args, **kwargs)
        return self._call(function)

    call.__doc__ = docstring(method)
    return call


def constructor(
    core: Callable[P, Core],
) -> Callable[[Callable[[Client, Core], None]], Callable[Concatenate[Client, P], None]]:
    """Have ``__init__`` take the arguments of an asyncio class, and get the object made of them."""

    def decorate(init: Callable[[Client, Core], None]) -> Callable[Concatenate[Client, P], None]:
        @wraps(core.__init__)
        def make(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, core(*args, **kwargs))

        make.__doc__ = docstring(core.__init__)
        return make

    return decorate
