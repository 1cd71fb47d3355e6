from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FollowRequest(_message.Message):
    __slots__ = ("version", "instance", "pool", "heard")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    version: int
    instance: str
    pool: str
    heard: _containers.RepeatedCompositeFieldContainer[Heard]
    def __init__(self, version: _Optional[int] = ..., instance: _Optional[str] = ..., pool: _Optional[str] = ..., heard: _Optional[_Iterable[_Union[Heard, _Mapping]]] = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ("instance", "number", "now")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    instance: str
    number: int
    now: bool
    def __init__(self, instance: _Optional[str] = ..., number: _Optional[int] = ..., now: bool = ...) -> None: ...

class News(_message.Message):
    __slots__ = ("version", "instance", "now", "names", "events", "past_told", "logs", "logs_lost")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    PAST_TOLD_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    LOGS_LOST_FIELD_NUMBER: _ClassVar[int]
    version: int
    instance: str
    now: float
    names: _containers.RepeatedScalarFieldContainer[str]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    past_told: bool
    logs: int
    logs_lost: int
    def __init__(self, version: _Optional[int] = ..., instance: _Optional[str] = ..., now: _Optional[float] = ..., names: _Optional[_Iterable[str]] = ..., events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., past_told: bool = ..., logs: _Optional[int] = ..., logs_lost: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sent", "computed", "over", "logged")
    SENT_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    LOGGED_FIELD_NUMBER: _ClassVar[int]
    sent: Sent
    computed: int
    over: Over
    logged: Logged
    def __init__(self, sent: _Optional[_Union[Sent, _Mapping]] = ..., computed: _Optional[int] = ..., over: _Optional[_Union[Over, _Mapping]] = ..., logged: _Optional[_Union[Logged, _Mapping]] = ...) -> None: ...

class Sent(_message.Message):
    __slots__ = ("number", "at", "endpoint", "prompt_tokens", "uncached", "prefill", "prefill_uncached", "output", "streamed", "over", "facts")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNCACHED_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    PREFILL_UNCACHED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    STREAMED_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    at: float
    endpoint: int
    prompt_tokens: int
    uncached: int
    prefill: int
    prefill_uncached: int
    output: int
    streamed: bool
    over: bool
    facts: _containers.RepeatedCompositeFieldContainer[Fact]
    def __init__(self, number: _Optional[int] = ..., at: _Optional[float] = ..., endpoint: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., uncached: _Optional[int] = ..., prefill: _Optional[int] = ..., prefill_uncached: _Optional[int] = ..., output: _Optional[int] = ..., streamed: bool = ..., over: bool = ..., facts: _Optional[_Iterable[_Union[Fact, _Mapping]]] = ...) -> None: ...

class Fact(_message.Message):
    __slots__ = ("plugin", "told")
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    plugin: int
    told: bytes
    def __init__(self, plugin: _Optional[int] = ..., told: _Optional[bytes] = ...) -> None: ...

class Over(_message.Message):
    __slots__ = ("number", "first_seconds", "seconds", "completed", "prompt_tokens", "cached_tokens")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FIRST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    number: int
    first_seconds: float
    seconds: float
    completed: bool
    prompt_tokens: int
    cached_tokens: int
    def __init__(self, number: _Optional[int] = ..., first_seconds: _Optional[float] = ..., seconds: _Optional[float] = ..., completed: bool = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class Logged(_message.Message):
    __slots__ = ("exchange", "outcome", "status", "served", "response_bytes", "prompt_tokens", "completion_tokens", "cached_tokens", "first_seconds", "seconds", "streamed", "attempts", "flags", "request")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Logged.Outcome]
        COMPLETED: _ClassVar[Logged.Outcome]
        FAILED: _ClassVar[Logged.Outcome]
        ABANDONED: _ClassVar[Logged.Outcome]
    UNKNOWN: Logged.Outcome
    COMPLETED: Logged.Outcome
    FAILED: Logged.Outcome
    ABANDONED: Logged.Outcome
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STREAMED_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    exchange: str
    outcome: Logged.Outcome
    status: int
    served: int
    response_bytes: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    first_seconds: float
    seconds: float
    streamed: bool
    attempts: int
    flags: int
    request: int
    def __init__(self, exchange: _Optional[str] = ..., outcome: _Optional[_Union[Logged.Outcome, str]] = ..., status: _Optional[int] = ..., served: _Optional[int] = ..., response_bytes: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., first_seconds: _Optional[float] = ..., seconds: _Optional[float] = ..., streamed: bool = ..., attempts: _Optional[int] = ..., flags: _Optional[int] = ..., request: _Optional[int] = ...) -> None: ...
