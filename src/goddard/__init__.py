"""Goddard: RocketMQ in Python, with Spark built in.

    from goddard import Message, Producer

    with Producer("greeters", name_servers="127.0.0.1:9876") as producer:
        print(producer.send(Message("greetings", b"Hello")))

These clients block and may be used from any thread; ``goddard.aio`` has the same names for asyncio.
``__init__.pyi`` lists the names. Each is imported when it is first used, so that ``import goddard``
takes almost no time.
"""

from importlib import import_module

__version__ = "0.2.0"


def _modules_by_name():
    """The module of each public name: ``from module import name as name`` in ``__init__.pyi``."""
    stub = __spec__.loader.get_data(__file__.rpartition(".")[0] + ".pyi").decode()
    lines = [line.split() for line in stub.splitlines() if line.startswith("from ")]
    return {name: module for _, module, _, name, _, _ in lines}


_MODULES = _modules_by_name()

__all__ = list(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__():
    return sorted({*globals(), *_MODULES})
