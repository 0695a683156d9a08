"""Official RocketMQ servers and tools as child processes on loopback.

    with JavaPeers("5.4.0", tmp_path) as java:
        namesrv = java.start_name_server()
        broker = java.start_broker(namesrv=namesrv.address, store_dir=tmp_path / "store")
        print(java.mqadmin("clusterList", "-n", namesrv.address))   # starts a new JVM: 1-2 s
        driver = java.driver()                                      # one JVM for many commands
        print(driver.admin("topicList", "-n", namesrv.address))
        clients = java.client_suite()                               # see support/java_clients.py
        broker.stop()                                               # or kill(), pause(), resume()

Starting a server returns when it prints ``boot success``; a failure shows the end of its output.
Each server has its own folder below the given one, with configuration, ROCKETMQ_HOME, logs and a
user home, because RocketMQ writes to ``${user.home}/logs`` and ``${user.home}/store``. Heaps and
files are small and timeouts long, because several servers run on a small machine; ``properties``
overrides these settings.
"""

import base64
import contextlib
import hashlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from goddard.testing.ports import lease_port
from goddard.testing.process import Process, ProcessError
from goddard.testing.site import BROKER_PROPERTIES as SITE_BROKER_PROPERTIES
from goddard.testing.site import Site
from tests.support.peers import POM_DIR, RELEASES, PeersError, exclusive, peers_dir

_BOOT_SUCCESS = "boot success"
_START_TIMEOUT_SECONDS = 60
_START_ATTEMPTS = 3
_VIP_PORT_OFFSET = -2
_HA_PORT_OFFSET = 1
_SOURCES = POM_DIR / "java"
_LOG_FILE_TAIL_BYTES = 3_000
_SHOWN_WORDS = 2_000

_OPENED_PACKAGES = ("java.nio", "jdk.internal.ref", "java.util", "sun.nio.ch")
_EXPORTED_PACKAGES = ("jdk.internal.ref", "sun.nio.ch", "jdk.internal.misc")
# For a fast start and little memory: these JVMs run for seconds.
BRIEF_JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_JVM_FLAGS = (
    *BRIEF_JVM_FLAGS,
    "-Xshare:auto",
    "-Xss512k",
    "-Djava.net.preferIPv4Stack=true",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
    *(f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in _EXPORTED_PACKAGES),
)

# 4.x reads its three files from ROCKETMQ_HOME/conf and does not start without them. 5.x finds
# rmq.logback.xml on the class path, where conf/ comes first; with those in its jars it would print
# pages about its own configuration, into mqadmin's answers too.
_LOGBACK_FILES = (
    "rmq.logback.xml",
    "logback_namesrv.xml",
    "logback_broker.xml",
    "logback_tools.xml",
)
_LOGBACK_CONTENT = """\
<configuration>
  <appender name="file" class="{package}.core.FileAppender">
    <file>${{user.home}}/rocketmq.log</file>
    <encoder><pattern>%d %level %logger - %m%n</pattern></encoder>
  </appender>
  <root level="{level}"><appender-ref ref="file"/></root>
</configuration>
"""
_LOG_LEVEL = "WARN"

BROKER_PROPERTIES: Mapping[str, str] = {
    "brokerClusterName": "DefaultCluster",
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    # The shortest period that a broker accepts: how soon it returns to a restarted name server.
    "registerNameServerPeriod": "10000",
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 3000),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    "mappedFileSizeTimerLog": str(1024 * 1024),
    "deleteWhen": "04",
    "fileReservedTime": "720",
    "diskMaxUsedSpaceRatio": "95",
    # A loaded machine must not make the broker refuse work.
    "waitTimeMillsInSendQueue": "30000",
    "waitTimeMillsInPullQueue": "30000",
    "osPageCacheBusyTimeOutMills": "30000",
}
"""The properties of a test broker, which the caller may override."""


class JavaServer(Process):
    """A name server or broker; by default it writes only below `home`."""

    home: Path = Path()

    def diagnosis(self) -> str:
        """Its output, and the end of its log files."""
        parts = [super().diagnosis()]
        for path in sorted(self.home.rglob("*.log")):
            tail = path.read_bytes()[-_LOG_FILE_TAIL_BYTES:].decode(errors="replace").strip()
            if tail and path != self.log:
                parts.append(f"--- {path}:\n{tail}")
        return "\n".join(parts)


Server = TypeVar("Server", bound=JavaServer)
Program = TypeVar("Program", bound="JavaProgram")


class JavaBroker(JavaServer):
    """A broker; `store_dir` can be handed to another broker once this one has ended."""

    store_dir: Path = Path()


class JavaPeers:
    """Starts servers and tools of one version and ends them all when closed."""

    def __init__(self, version: str, directory: Path, *, prefix: Sequence[str] = ()) -> None:
        """``prefix`` is the beginning of each command, as of one that enters a namespace."""
        release = RELEASES.get(version)
        if release is None or not (release.is_complete and "client" in release.content):
            raise PeersError(f"RocketMQ {version} is not here: run `make peers`")
        self.version = version
        self.directory = directory
        self._prefix = tuple(prefix)
        self._class_path = str(release.lib / "*")
        self._processes: list[Process] = []
        self._programs: list[JavaProgram] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill everything; a server that is to leave its files in order is stopped first."""
        while self._programs:
            self._programs.pop().close()
        while self._processes:
            self._processes.pop().kill()

    def start_name_server(
        self,
        name: str = "namesrv",
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> JavaServer:
        def create(port: int, home: Path) -> JavaServer:
            settings = {
                "listenPort": str(port),
                "bindAddress": "127.0.0.1",
                "kvConfigPath": str(home / "kvConfig.json"),
                "configStorePath": str(home / "namesrv.properties"),
                **(properties or {}),
            }
            config = _write_properties(home / "namesrv.conf", settings)
            main = ("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config))
            return self._server(JavaServer, name, port, home, main, "-Xms64m", "-Xmx128m")

        return self._start(create, name, port, lease_port)

    def start_broker(
        self,
        name: str = "broker-a",
        *,
        namesrv: str = "",
        store_dir: Path | None = None,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        conf_files: Mapping[str, str] | None = None,
        heap_mib: int = 320,
    ) -> JavaBroker:
        """Start a broker called `name` on a store, new or existing.

        `conf_files` are further files of ROCKETMQ_HOME/conf, by name.

        `namesrv` may be empty (it then registers nowhere) or list several, separated by `;`.
        Slaves: pass ``{"brokerRole": "SLAVE", "brokerId": "1"}`` and, as a process name must be
        unique here, ``{"brokerName": …}`` with the master's name.
        """

        def create(port: int, home: Path) -> JavaBroker:
            store = home / "store" if store_dir is None else store_dir
            for file_name, content in (conf_files or {}).items():
                (home / "conf" / file_name).write_text(content)
            settings = {
                **BROKER_PROPERTIES,
                "brokerName": name,
                "listenPort": str(port),
                "haListenPort": str(port + _HA_PORT_OFFSET),
                "storePathRootDir": str(store),
                "storePathCommitLog": str(store / "commitlog"),
                **({"namesrvAddr": namesrv} if namesrv else {}),
                **(properties or {}),
            }
            config = _write_properties(home / "broker.conf", settings)
            main = ("org.apache.rocketmq.broker.BrokerStartup", "-c", str(config))
            memory = ("-Xms64m", f"-Xmx{heap_mib}m", "-XX:MaxDirectMemorySize=512m")
            broker = self._server(JavaBroker, name, port, home, main, *memory)
            broker.store_dir = store
            return broker

        return self._start(
            create, name, port, lambda: lease_port(_VIP_PORT_OFFSET, _HA_PORT_OFFSET)
        )

    def mqadmin(self, *arguments: str, timeout: float = 60) -> str:
        """Run one mqadmin command in a new JVM; returns its standard output."""
        home = self._make_home(f"mqadmin-{len(self._processes)}", exist_ok=True)
        main = ("org.apache.rocketmq.tools.command.MQAdminStartup", *arguments)
        done = subprocess.run(
            self._java(home, main, "-Xmx128m"),
            env=self._environment(home),
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            raise ProcessError(f"mqadmin {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def example(
        self, name: str, main_class: str, *arguments: str, namesrv: str, ready: str = ""
    ) -> Process:
        """One of RocketMQ's examples with this version's client, not started yet.

        `main_class` is below ``org.apache.rocketmq.example``; `ready` is the text that it prints
        when it works. The examples are those of 4.7.0, for a 4.x client.
        """
        home = self._make_home(name)
        main = (f"org.apache.rocketmq.example.{main_class}", *arguments)
        jars = (str(RELEASES["4.7.0"].lib / "*"),)
        process = Process(
            f"Java {self.version} {main_class}",
            self._java(home, main, "-Xmx128m", extra_class_path=jars),
            log=home / "output.log",
            ready=ready,
            env={**self._environment(home), "NAMESRV_ADDR": namesrv},
            cwd=home,
        )
        self._processes.append(process)
        return process

    def driver(self) -> "JavaDriver":
        """A JVM that runs mqadmin, producers and consumers of this version on request."""
        return self._program(JavaDriver, "Driver", ["Pipe.java", "Driver.java"])

    def client_suite(self, *flags: str) -> "JavaProgram":
        """A JVM with every kind of client of this version, for ``JavaClients``."""
        names = [path.name for path in _SOURCES.glob("ClientSuite*.java")]
        major = self.version.partition(".")[0]
        sources = ["Pipe.java", *names, f"v{major}/ClientSuiteVersion.java"]
        return self._program(JavaProgram, "ClientSuite", sources, *flags)

    def _program(self, kind: type[Program], main: str, sources: list[str], *own: str) -> Program:
        home = self._make_home(f"{main.lower()}-{len(self._programs)}")
        classes = compile_java(self.version, main, sources)
        # Intervals of rebalancing and of renewing queue locks. They must not end one second after
        # the start, when the client sends a heartbeat: a change at that moment is not sent to the
        # broker, and nothing is pulled until the next heartbeat.
        periods = ("waitInterval=600", "minInterval=300", "lockInterval=700")
        intervals = (f"-Drocketmq.client.rebalance.{period}" for period in periods)
        # Answers are on stdout, so the JVM's own warnings must go to stderr.
        warnings = ("-Xlog:disable", "-Xlog:all=warning:stderr")
        flags = ("-Xmx256m", *warnings, *intervals, *own)
        command = self._java(home, (main,), *flags, extra_class_path=(str(classes),))
        program = kind(command, self._environment(home), home / "driver.log")
        self._programs.append(program)
        return program

    def _start(
        self,
        create: Callable[[int, Path], Server],
        name: str,
        port: int | None,
        lease: Callable[[], int],
    ) -> Server:
        """Start a server; if another process has taken its port, retry with another port."""
        home = self._make_home(name)
        for attempt in range(1, _START_ATTEMPTS + 1):
            chosen = lease() if port is None else port
            server = create(chosen, home)
            self._processes.append(server)
            try:
                return server.start()
            except ProcessError as error:
                self._processes.remove(server)
                port_lost = "already in use" in str(error) or "BindException" in str(error)
                if port is not None or not port_lost or attempt == _START_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _server(
        self,
        kind: type[Server],
        name: str,
        port: int,
        home: Path,
        main: tuple[str, ...],
        *flags: str,
    ) -> Server:
        server = kind(
            f"Java {self.version} {name}",
            self._java(home, main, *flags),
            log=home / "output.log",
            ready=_BOOT_SUCCESS,
            port=port,
            env=self._environment(home),
            cwd=home,
            start_timeout=_START_TIMEOUT_SECONDS,
        )
        server.home = home
        return server

    def _make_home(self, name: str, *, exist_ok: bool = False) -> Path:
        home = self.directory / f"java-{self.version}" / name
        if home.exists() and not exist_ok:
            raise PeersError(f"there was a {name} of {self.version} already; choose another name")
        conf = home / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        shaded = "" if self.version.startswith("4.") else "org.apache.rocketmq.logging."
        package = f"{shaded}ch.qos.logback"
        content = _LOGBACK_CONTENT.format(package=package, level=_LOG_LEVEL)
        for logback in _LOGBACK_FILES:
            (conf / logback).write_text(content)
        return home

    def _environment(self, home: Path) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"}
        return {**inherited, "ROCKETMQ_HOME": str(home), "HOME": str(home)}

    def _java(
        self, home: Path, main: tuple[str, ...], *flags: str, extra_class_path: tuple[str, ...] = ()
    ) -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise PeersError("java not found: install a JDK 17 or newer")
        paths = [str(home / "conf"), *extra_class_path, self._class_path]
        places = (f"-Duser.home={home}", f"-Drocketmq.home.dir={home}")
        client_log = f"-Drocketmq.client.logRoot={home / 'logs'}"
        class_path = ("-cp", os.pathsep.join(paths))
        return [*self._prefix, java, *_JVM_FLAGS, *flags, *places, client_log, *class_path, *main]


class JavaAnswer(NamedTuple):
    """``outcome`` is ok or failed; ``printed`` is all output of the JVM, stdout before stderr."""

    outcome: str
    answer: str
    printed: str


class JavaProgram:
    """A JVM that runs requests one at a time; Pipe.java documents the protocol.

    A request that times out kills the JVM, so that no later request reads its answer.
    """

    def __init__(self, command: list[str], env: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as errors:
            self._jvm = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(env),
                # Some mqadmin commands create files in the working directory.
                cwd=log.parent,
                start_new_session=True,
            )

    def close(self) -> None:
        """Close the input, which ends the JVM; this also happens when this process ends."""
        if self._jvm.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._jvm.stdin.close()
        try:
            self._jvm.wait(5)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
            self._jvm.wait()
        if self._jvm.stdout is not None:
            self._jvm.stdout.close()

    def do(self, *words: str, timeout: float = 60) -> str:
        """Run a verb and return its result; a failure raises an error with Java's stack trace."""
        done = self.ask(*words, timeout=timeout)
        if done.outcome != "ok":
            raise ProcessError(f"Java: {' '.join(words)[:_SHOWN_WORDS]} failed:\n{done.printed}")
        return done.answer

    def ask(self, *words: str, timeout: float) -> "JavaAnswer":
        jvm = self._jvm
        assert jvm.stdin is not None
        assert jvm.stdout is not None
        line = " ".join(base64.b64encode(word.encode()).decode() for word in words)
        watchdog = threading.Timer(timeout, jvm.kill)
        watchdog.start()
        started = time.monotonic()
        try:
            jvm.stdin.write(line.encode() + b"\n")
            jvm.stdin.flush()
            outcome, *sizes = jvm.stdout.readline().decode().split()
            answer, out, err = (jvm.stdout.read(int(size)).decode() for size in sizes)
        except (ValueError, BrokenPipeError):
            seconds = time.monotonic() - started
            tail = self._log.read_bytes()[-_LOG_FILE_TAIL_BYTES:].decode(errors="replace")
            raise ProcessError(
                f"Java ended after {seconds:.1f} s in: {' '.join(words)[:_SHOWN_WORDS]}\n{tail}"
            ) from None
        finally:
            watchdog.cancel()
        return JavaAnswer(outcome, answer, out + err)


class JavaDriver(JavaProgram):
    """mqadmin and simple clients in one JVM."""

    def admin(self, *arguments: str, timeout: float = 60) -> str:
        """Run an mqadmin command; returns its standard output followed by its standard error.

        mqadmin reports most failures only by printing a stack trace.
        """
        return self.ask("admin", *arguments, timeout=timeout).printed

    def open_producer(self, name: str, namesrv: str, group: str = "driver-producers") -> None:
        self.do("open-producer", name, namesrv, group)

    def send(
        self,
        producer: str,
        topic: str,
        count: int,
        *,
        size_bytes: int = 100,
        tag: str = "",
        timeout: float = 60,
    ) -> list[str]:
        """Send and return the message ids; any send that is not SEND_OK is an error."""
        ids = self.do("send", producer, topic, str(count), str(size_bytes), tag, timeout=timeout)
        return ids.split()

    def close_producer(self, name: str) -> None:
        self.do("close-producer", name)

    def open_consumer(
        self, name: str, namesrv: str, topic: str, *, group: str = "", expression: str = "*"
    ) -> None:
        """Start a push consumer that reads its group's queues from the beginning."""
        self.do("open-consumer", name, namesrv, group or name, topic, expression)

    def receive(self, consumer: str, count: int, timeout: float = 30) -> list[str]:
        """The ids of all messages so far, once there are `count` distinct ones or time is up."""
        answer = self.do(
            "receive", consumer, str(count), str(int(timeout * 1000)), timeout=timeout + 10
        )
        return answer.split()

    def close_consumer(self, name: str) -> None:
        self.do("close-consumer", name)


def compile_java(version: str, name: str, sources: list[str]) -> Path:
    """Compile a program against one version's jars, once per state of its sources."""
    paths = [_SOURCES / source for source in sorted(sources)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]
    classes = peers_dir() / "classes" / version / name
    stamp = classes / f"{digest}.compiled"
    with exclusive(peers_dir() / f"classes-{version}.lock"):
        if stamp.exists():
            return classes
        shutil.rmtree(classes, ignore_errors=True)
        classes.mkdir(parents=True)
        class_path = str(RELEASES[version].lib / "*")
        command = ["javac", "-encoding", "UTF-8", "-d", str(classes), "-cp", class_path]
        done = subprocess.run(
            [*command, *(str(path) for path in paths)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise PeersError(f"javac failed on {name}:\n{done.stderr}")
        stamp.touch()
        return classes


def _write_properties(path: Path, properties: Mapping[str, str]) -> Path:
    lines = (f"{key}={_escape(value)}\n" for key, value in properties.items())
    path.write_text("".join(lines))
    return path


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\")


def start_java_broker(site: Site, java: JavaPeers, name: str = "broker-java") -> Process:
    """Start a Java broker with the settings of all of a site's brokers, and add it to the site."""
    broker = java.start_broker(name, namesrv=site.namesrv, properties=SITE_BROKER_PROPERTIES)
    return site.add_broker(name, broker)
