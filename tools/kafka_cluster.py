"""Real Kafka brokers on loopback, to be killed, frozen and brought back.

    directory/cluster.json    the ports of brokers 1..N, in the order of Broker's fields; 0 for none
    directory/broker-I/       see kafka_broker.py

Each broker is a controller too (KRaft combined mode), so a cluster of three
outlives one of them. Data stay until the next `up`, which starts empty.
"""

import base64
import contextlib
import json
import random
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from tools.kafka_broker import HOST, Broker
from tools.kafka_certificates import make_certificates
from tools.kafka_cut import cut, mend
from tools.kafka_install import CACHE, KafkaError, KafkaMissing, fetch_jars, jars_available

__all__ = [
    "DEFAULT_DIRECTORY",
    "KafkaCluster",
    "KafkaError",
    "KafkaMissing",
    "fetch_jars",
    "jars_available",
]

DEFAULT_DIRECTORY = CACHE / "cluster"
START_TIMEOUT_S = 90.0

# Below the ports that the kernel gives to outgoing connections: no process may take a dead broker's
# port, least of all a client that reconnects to it and would connect to itself.
_PORTS = range(20_000, 30_000)

_SETTINGS = """\
node.id={id}
process.roles=broker,controller
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map=\
PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,PROXIED:PLAINTEXT,\
SASL_SSL:SASL_SSL,MTLS:SSL,EXPIRED:SSL,ELSEWHERE:SSL
controller.listener.names=CONTROLLER
controller.quorum.voters={voters}
log.dirs={directory}/data

num.partitions=6
log.retention.ms=-1
auto.create.topics.enable={auto_create}
default.replication.factor={copies}
min.insync.replicas={in_sync}

offsets.topic.num.partitions=5
offsets.topic.replication.factor={copies}
transaction.state.log.num.partitions=5
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.num.partitions=5
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
group.initial.rebalance.delay.ms=0
"""
_SECURED = """\
sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:CN=bruce
ssl.keystore.type=PEM
listener.name.sasl_ssl.ssl.keystore.location={tls}/broker.pem
listener.name.mtls.ssl.keystore.location={tls}/broker.pem
listener.name.expired.ssl.keystore.location={tls}/expired.pem
listener.name.elsewhere.ssl.keystore.location={tls}/elsewhere.pem
listener.name.mtls.ssl.client.auth=required
listener.name.mtls.ssl.truststore.type=PEM
listener.name.mtls.ssl.truststore.location={tls}/ca.pem
""" + "".join(
    f"listener.name.{listener}.{mechanism}.sasl.jaas.config="
    "org.apache.kafka.common.security.scram.ScramLoginModule required;\n"
    for listener in ("sasl_plaintext", "sasl_ssl")
    for mechanism in ("scram-sha-256", "scram-sha-512")
)
"""Beside the plain listener, whose clients may do everything: two for users with passwords and ACLs, and
three by TLS, whose certificates are good (clients must show one), expired, and for another host."""
TLS_LISTENERS = ("SASL_SSL", "MTLS", "EXPIRED", "ELSEWHERE")


class KafkaCluster:
    """Brokers 1..N in one directory; finds those of an earlier `up` again."""

    def __init__(
        self,
        directory: Path,
        brokers: int,
        *,
        secured: bool = False,
        proxied: bool = False,
        auto_create: bool = True,
    ) -> None:
        """`secured`: with listeners where users have SCRAM passwords and need ACLs, and others by TLS.

        `auto_create`: a topic comes into being when a client names it.
        `proxied`: with a listener for a proxy, whose address it advertises.
        """
        self.directory = directory.resolve()
        self.size, self.secured, self.proxied, self.auto_create = brokers, secured, proxied, auto_create
        self.brokers = _read_plan(self.directory)

    @classmethod
    def load(cls, directory: Path) -> "KafkaCluster":
        """The cluster that an earlier `up` left in the directory."""
        brokers = len(_read_plan(directory))
        if not brokers:
            raise KafkaError(f"there is no cluster in {directory}; `up` makes one")
        return cls(directory, brokers)

    @property
    def bootstrap(self) -> str:
        """The value of a client's bootstrap.servers."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def sasl_bootstrap(self) -> str:
        """The same, of the listener for users with passwords."""
        return ",".join(broker.sasl_address for broker in self.brokers)

    def tls_bootstrap(self, listener: str) -> str:
        """The same, of one of TLS_LISTENERS."""
        return ",".join(f"{HOST}:{broker.tls_ports[listener]}" for broker in self.brokers)

    @property
    def certificates(self) -> Path:
        """The directory of `make_certificates`, when secured."""
        return self.directory / "tls"

    @property
    def proxy_bootstrap(self) -> str:
        """The same, of the proxies."""
        return ",".join(broker.proxy_address for broker in self.brokers)

    def up(self) -> None:
        """Start N empty brokers and return when each of them knows all others."""
        if any(broker.pid for broker in self.brokers):
            raise KafkaError(f"brokers are already running in {self.directory}")
        fetch_jars()
        self._lay_out()
        try:
            self._format()
            for broker in self.brokers:
                broker.launch()
            self._await(self.brokers)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Stop every broker, frozen ones too; their data stay."""
        # Kafka's own shutdown takes three brokers six seconds, and SIGKILL loses nothing on disk.
        for broker in self.brokers:
            with contextlib.suppress(KafkaError):
                broker.send(signal.SIGKILL)
        for broker in self.brokers:
            broker.await_state("dead")

    def kill(self, broker_id: int) -> None:
        """End a broker without its shutdown (SIGKILL); return when it is dead."""
        self._signal(broker_id, signal.SIGKILL, "dead")

    def freeze(self, broker_id: int) -> None:
        """Stop every thread of a broker: its connections stay open and get no answer."""
        self._signal(broker_id, signal.SIGSTOP, "frozen")

    def thaw(self, broker_id: int) -> None:
        """Let a frozen broker continue."""
        self._signal(broker_id, signal.SIGCONT, "running")

    def cut(self, broker_id: int) -> None:
        """Drop every packet to a broker's port, from clients and brokers, without notice to either side."""
        broker = self.broker(broker_id)
        cut(broker.pid or 0, broker.port)

    def mend(self, broker_id: int) -> None:
        """Undo `cut`."""
        broker = self.broker(broker_id)
        mend(broker.pid or 0, broker.port)

    def start(self, broker_id: int) -> None:
        """Bring a dead broker back on its ports and data; return when it answers."""
        broker = self.broker(broker_id)
        broker.launch()
        self._await([broker])

    def heal(self) -> None:
        """Thaw frozen brokers, mend cut ones, start dead ones: the next test finds N brokers."""
        for broker in self.brokers:
            if broker.state == "frozen":
                self.thaw(broker.id)
            if broker.pid:
                self.mend(broker.id)
        dead = [broker for broker in self.brokers if broker.state == "dead"]
        for broker in dead:
            broker.launch()
        self._await(dead)

    def broker(self, broker_id: int) -> Broker:
        """The broker of that id, 1..N."""
        for broker in self.brokers:
            if broker.id == broker_id:
                return broker
        raise KafkaError(f"there is no broker {broker_id} among {len(self.brokers)}")

    def _signal(self, broker_id: int, number: signal.Signals, state: str) -> None:
        broker = self.broker(broker_id)
        broker.send(number)
        if not broker.await_state(state):
            raise KafkaError(f"broker {broker_id} is {broker.state}, not {state}; see {broker.log}")

    def _await(self, brokers: Sequence[Broker]) -> None:
        ids = {broker.id for broker in brokers}
        deadline = time.monotonic() + START_TIMEOUT_S
        for broker in brokers:
            broker.await_peers(ids, deadline)

    def _lay_out(self) -> None:
        for broker in self.brokers:
            shutil.rmtree(broker.directory, ignore_errors=True)
        wanted = (True, True, self.secured, self.proxied, self.proxied)
        listeners = TLS_LISTENERS if self.secured else ()
        ports = iter(_free_ports(self.size * (len(wanted) + len(listeners))))
        plan = [
            [*(next(ports) if there else 0 for there in wanted), dict(zip(listeners, ports, strict=False))]
            for _ in range(self.size)
        ]
        if self.secured:
            make_certificates(self.certificates)
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "cluster.json").write_text(json.dumps(plan))
        self.brokers = _read_plan(self.directory)
        for broker in self.brokers:
            broker.lay_out(self._settings(broker))

    def _settings(self, broker: Broker) -> str:
        return (_SETTINGS + (_SECURED if self.secured else "")).format(
            id=broker.id,
            listeners=_addresses(
                PLAINTEXT=broker.port,
                CONTROLLER=broker.controller_port,
                SASL_PLAINTEXT=broker.sasl_port,
                PROXIED=broker.proxied_port,
                **broker.tls_ports,
            ),
            advertised=_addresses(
                PLAINTEXT=broker.port,
                SASL_PLAINTEXT=broker.sasl_port,
                PROXIED=broker.proxy_port,
                **broker.tls_ports,
            ),
            tls=self.certificates,
            voters=",".join(f"{b.id}@{HOST}:{b.controller_port}" for b in self.brokers),
            directory=broker.directory,
            auto_create=str(self.auto_create).lower(),
            copies=min(3, self.size),
            in_sync=min(2, self.size),
        )

    def _format(self) -> None:
        # A zero byte first: an id that began with "-" would be taken for an option.
        cluster_id = base64.urlsafe_b64encode(bytes(1) + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        tools = [(broker, broker.begin_format(cluster_id)) for broker in self.brokers]
        for broker, tool in tools:
            broker.end_format(tool)


def _read_plan(directory: Path) -> list[Broker]:
    """The brokers of the last `up` in the directory; none when there was none."""
    try:
        plan = json.loads((directory / "cluster.json").read_text())
    except FileNotFoundError:
        return []
    return [
        Broker(number, port, controller_port, directory.resolve() / f"broker-{number}", *others)
        for number, (port, controller_port, *others) in enumerate(plan, start=1)
    ]


def _addresses(**ports: int) -> str:
    """Listeners by name, without those that have no port."""
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items() if port)


def _free_ports(count: int) -> list[int]:
    """Distinct loopback ports without a listener."""
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(ports) == count:
            break
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            ports.append(port)
    return ports
