"""librdkafka, reached through ctypes: the copy that the confluent_kafka wheel carries.

confluent_kafka's own interface costs a Python call per message, so messages go to the library directly.
Its file has no fixed name; it is found among the files that importing confluent_kafka has mapped. Loading
starts no thread; a client does.

Pointers travel as integers, and kernels call by address (`spool.native.memory.call`): a ctypes function
inside a kernel would keep it from being cached on disk.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_char_p, c_int, c_int16, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from enum import IntEnum, IntFlag
from typing import Any

import confluent_kafka

from dispatch.errors import BadProperty, NoLibrary

OLDEST = (2, 16, 0)
"""First version whose structures (`rd_kafka_vu_t`, `rd_kafka_message_t`) the kernels were tried with."""
BEFORE = (3, 0, 0)

PRODUCER, CONSUMER = 0, 1
"""rd_kafka_type_t"""
CONF_OK = 0
COPY_MESSAGE = 0x2
"""RD_KAFKA_MSG_F_COPY: the library copies key and value before `produceva` returns."""
PURGE_ALL = 0x1 | 0x2 | 0x4
"""RD_KAFKA_PURGE_F_QUEUE | _INFLIGHT | _NON_BLOCKING"""
DESTROY_WITHOUT_GOODBYE = 0x8
"""RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE: do not wait for anything a broker would have to answer."""


class Vtype(IntEnum):
    """rd_kafka_vtype_t: what one argument of `produceva` is."""

    RKT = 2
    PARTITION = 3
    VALUE = 4
    KEY = 5
    OPAQUE = 6
    MSGFLAGS = 7
    TIMESTAMP = 8
    HEADER = 9


class Event(IntFlag):
    """rd_kafka_event_type_t: the kinds of events in a queue."""

    DELIVERY = 0x1
    LOG = 0x4
    ERROR = 0x8
    STATS = 0x40


class BrokerStruct(ctypes.Structure):
    """One broker: rd_kafka_metadata_broker."""

    _fields_ = [("id", c_int32), ("host", c_char_p), ("port", c_int)]


class PartitionStruct(ctypes.Structure):
    """One partition: rd_kafka_metadata_partition."""

    _fields_ = [
        ("id", c_int32),
        ("error", c_int),
        ("leader", c_int32),
        ("replica_count", c_int),
        ("replicas", POINTER(c_int32)),
        ("isr_count", c_int),
        ("isrs", POINTER(c_int32)),
    ]


class TopicStruct(ctypes.Structure):
    """One topic: rd_kafka_metadata_topic."""

    _fields_ = [
        ("name", c_char_p),
        ("partition_count", c_int),
        ("partitions", POINTER(PartitionStruct)),
        ("error", c_int),
    ]


class MetadataStruct(ctypes.Structure):
    """An answer: rd_kafka_metadata."""

    _fields_ = [
        ("broker_count", c_int),
        ("brokers", POINTER(BrokerStruct)),
        ("topic_count", c_int),
        ("topics", POINTER(TopicStruct)),
        ("asked_broker_id", c_int32),
        ("asked_broker_name", c_char_p),
    ]


class OffsetStruct(ctypes.Structure):
    """A partition and an offset of it: rd_kafka_topic_partition_t."""

    _fields_ = [
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("error", c_int),
        ("private", c_void_p),
    ]


class OffsetListStruct(ctypes.Structure):
    """Some of them: rd_kafka_topic_partition_list_t."""

    _fields_ = [("count", c_int), ("size", c_int), ("offsets", POINTER(OffsetStruct))]


_Metadata = POINTER(POINTER(MetadataStruct))
_Offsets = POINTER(OffsetListStruct)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    # name: (result, arguments...)
    "version": (c_int,),
    "version_str": (c_char_p,),
    "err2name": (c_char_p, c_int),
    "err2str": (c_char_p, c_int),
    "conf_new": (c_void_p,),
    "conf_destroy": (None, c_void_p),
    "conf_get": (c_int, c_void_p, c_char_p, c_char_p, POINTER(c_size_t)),
    "conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "conf_set_events": (None, c_void_p, c_int),
    "conf_set_error_cb": (None, c_void_p, c_void_p),
    "conf_set_ssl_cert_verify_cb": (c_int, c_void_p, c_void_p),
    "topic_conf_new": (c_void_p,),
    "topic_conf_destroy": (None, c_void_p),
    "topic_conf_set": (c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t),
    "default_topic_conf_dup": (c_void_p, c_void_p),
    "new": (c_void_p, c_int, c_void_p, c_char_p, c_size_t),
    "destroy_flags": (None, c_void_p, c_int),
    "purge": (c_int, c_void_p, c_int),
    "flush": (c_int, c_void_p, c_int),
    "fatal_error": (c_int, c_void_p, c_char_p, c_size_t),
    "test_fatal_error": (c_int, c_void_p, c_int, c_char_p),
    "topic_new": (c_void_p, c_void_p, c_char_p, c_void_p),
    "topic_destroy": (None, c_void_p),
    "topic_name": (c_char_p, c_void_p),
    "metadata": (c_int, c_void_p, c_int, c_void_p, _Metadata, c_int),
    "metadata_destroy": (None, POINTER(MetadataStruct)),
    "set_log_queue": (c_int, c_void_p, c_void_p),
    "queue_get_main": (c_void_p, c_void_p),
    "queue_get_consumer": (c_void_p, c_void_p),
    "queue_destroy": (None, c_void_p),
    "queue_io_event_enable": (None, c_void_p, c_int, c_void_p, c_size_t),
    "queue_poll": (c_void_p, c_void_p, c_int),
    "event_type": (c_int, c_void_p),
    "event_destroy": (None, c_void_p),
    "event_message_next": (c_void_p, c_void_p),
    "event_error": (c_int, c_void_p),
    "event_error_string": (c_char_p, c_void_p),
    "event_error_is_fatal": (c_int, c_void_p),
    "event_stats": (c_void_p, c_void_p),
    "event_log": (c_int, c_void_p, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_int)),
    "produceva": (c_void_p, c_void_p, c_void_p, c_size_t),
    "topic_partition_list_new": (_Offsets, c_int),
    "topic_partition_list_add": (POINTER(OffsetStruct), _Offsets, c_char_p, c_int32),
    "topic_partition_list_destroy": (None, _Offsets),
    "assign": (c_int, c_void_p, _Offsets),
    "offsets_for_times": (c_int, c_void_p, _Offsets, c_int),
    "consume_batch_queue": (c_ssize_t, c_void_p, c_int, c_void_p, c_size_t),
    "message_headers": (c_int, c_void_p, POINTER(c_void_p)),
    "header_cnt": (c_size_t, c_void_p),
    "header_get_all": (
        *(c_int, c_void_p, c_size_t),
        *(POINTER(c_char_p), POINTER(c_void_p), POINTER(c_size_t)),
    ),
    "message_timestamp": (c_int64, c_void_p, POINTER(c_int)),
    "message_errstr": (c_char_p, c_void_p),
    "message_destroy": (None, c_void_p),
    "init_transactions": (c_void_p, c_void_p, c_int),
    "begin_transaction": (c_void_p, c_void_p),
    "commit_transaction": (c_void_p, c_void_p, c_int),
    "abort_transaction": (c_void_p, c_void_p, c_int),
    "queue_new": (c_void_p, c_void_p),
    "AdminOptions_new": (c_void_p, c_void_p, c_int),
    "AdminOptions_set_request_timeout": (c_int, c_void_p, c_int, c_char_p, c_size_t),
    "AdminOptions_destroy": (None, c_void_p),
    "ConfigResource_new": (c_void_p, c_int, c_char_p),
    "ConfigResource_destroy_array": (None, POINTER(c_void_p), c_size_t),
    "DescribeConfigs": (None, c_void_p, POINTER(c_void_p), c_size_t, c_void_p, c_void_p),
    "event_DescribeConfigs_result": (c_void_p, c_void_p),
    "DescribeConfigs_result_resources": (POINTER(c_void_p), c_void_p, POINTER(c_size_t)),
    "ConfigResource_name": (c_char_p, c_void_p),
    "ConfigResource_error": (c_int, c_void_p),
    "ConfigResource_configs": (POINTER(c_void_p), c_void_p, POINTER(c_size_t)),
    "ConfigEntry_name": (c_char_p, c_void_p),
    "ConfigEntry_value": (c_char_p, c_void_p),
    "error_code": (c_int, c_void_p),
    "error_string": (c_char_p, c_void_p),
    "error_is_fatal": (c_int, c_void_p),
    "error_txn_requires_abort": (c_int, c_void_p),
    "error_destroy": (None, c_void_p),
    "mock_cluster_new": (c_void_p, c_void_p, c_int),
    "mock_cluster_destroy": (None, c_void_p),
    "mock_cluster_bootstraps": (c_char_p, c_void_p),
    "mock_broker_set_down": (c_int, c_void_p, c_int32),
    "mock_broker_set_up": (c_int, c_void_p, c_int32),
    "mock_broker_set_rtt": (c_int, c_void_p, c_int32, c_int),
    "mock_topic_create": (c_int, c_void_p, c_char_p, c_int, c_int),
    "mock_partition_set_leader": (c_int, c_void_p, c_char_p, c_int32, c_int32),
    "mock_push_request_errors_array": (None, c_void_p, c_int16, c_size_t, POINTER(c_int)),
    "mock_clear_request_errors": (None, c_void_p, c_int16),
    "mock_start_request_tracking": (None, c_void_p),
    "mock_get_requests": (POINTER(c_void_p), c_void_p, POINTER(c_size_t)),
    "mock_clear_requests": (None, c_void_p),
    "mock_request_api_key": (c_int16, c_void_p),
    "mock_request_destroy_array": (None, POINTER(c_void_p), c_size_t),
}


class Library:
    """The functions we use, without their `rd_kafka_` prefix: `library.version()`."""

    def __init__(self, path: str) -> None:
        """Load the library at `path`. Raises OSError; NoLibrary when it lacks one of the functions."""
        self.path = path
        self._file = ctypes.CDLL(path)
        for name, (result, *arguments) in _SIGNATURES.items():
            try:
                function = getattr(self._file, f"rd_kafka_{name}")
            except AttributeError:
                raise NoLibrary(
                    f"{path} has no function rd_kafka_{name}; install confluent-kafka 2.16"
                ) from None
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"rd_kafka_{name} is not among the functions in dispatch.librdkafka")

    def address(self, name: str) -> int:
        """The address of a function, as `spool.native.memory.call` takes it."""
        # As spool.native.memory.function_address, without the Numba that the embedded Kafka would load.
        return int(ctypes.cast(getattr(self, name), c_void_p).value or 0)

    def error_name(self, code: int) -> str:
        """The symbolic name of an error code, such as `_MSG_TIMED_OUT`."""
        return _text(self.err2name(code))

    def error_text(self, code: int) -> str:
        """librdkafka's words about an error code."""
        return _text(self.err2str(code))


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


@functools.cache
def load() -> Library:
    """The library, checked and ready. Raises NoLibrary."""
    library = Library(_mapped_path())
    if not OLDEST <= _parse_version(library.version()) < BEFORE:
        found = _text(library.version_str())
        raise NoLibrary(
            f"{library.path} is librdkafka {found}, but its structures are known for "
            f"{_dotted(OLDEST)} up to, not including, {_dotted(BEFORE)}; install confluent-kafka 2.16"
        )
    return library


def version() -> str:
    """The library's release. Raises NoLibrary."""
    return _text(load().version_str())


def features() -> str:
    """The features that the library was built with: codecs, TLS, ways to authenticate. Raises NoLibrary."""
    library, said = load(), ctypes.create_string_buffer(512)
    conf = library.conf_new()
    library.conf_get(conf, b"builtin.features", said, ctypes.byref(c_size_t(len(said))))
    library.conf_destroy(conf)
    return _text(said.value).replace(",", ", ")


def _mapped_path() -> str:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")
            if "librdkafka" in path[2].rpartition("/")[2]:
                return "/" + path[2]
    raise NoLibrary(
        f"confluent_kafka at {confluent_kafka.__file__} maps no librdkafka file of its own; install its wheel"
    )


def _parse_version(number: int) -> tuple[int, int, int]:
    """0xMMmmrrxx -> (major, minor, revision)."""
    return number >> 24 & 0xFF, number >> 16 & 0xFF, number >> 8 & 0xFF


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


def set_properties(set_one: Any, conf: int, properties: dict[str, str], table: str = "kafka") -> None:
    """Set each property with `set_one` (conf_set or topic_conf_set). Raises BadProperty, with the table."""
    said = ctypes.create_string_buffer(512)
    for key, value in properties.items():
        if set_one(conf, key.encode(), value.encode(), said, len(said)) != CONF_OK:
            raise BadProperty(key, f"Kafka property {key!r} in [{table}]: {_text(said.value).strip()}")
