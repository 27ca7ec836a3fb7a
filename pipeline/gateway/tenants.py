"""Tenants: authentication by API key, limits of requests and tokens, and separation of namespaces."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipeline.config.schema import ApiKey, GatewayConfig
from pipeline.gateway.refusal import Refusal

Clock = Callable[[], float]
# Retry-After if the end of a running request is unknown.
RETRY_AFTER_S = 1
# Bodies up to this length are read and served however many long ones there are.
SHORT_BYTES = 1 << 16
# Limit of the bodies that arrive, and of those that are served, at the same time, in bodies of the longest size.
MAX_LONG = 32
# Weight of a choice of an OpenAI request, in bodies: the front end takes 200 bytes of memory per byte of a prompt.
OPENAI_WEIGHT = 16
# Longest namespace that a client may choose, in bytes of UTF-8.
MAX_NAMESPACE_BYTES = 128


@dataclass(slots=True)
class TokenBucket:
    """Rate limit of tokens: holds at most `per_minute` tokens and refills at that rate."""

    per_minute: int
    clock: Clock
    _level: float = field(init=False)
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._level, self._filled_at = float(self.per_minute), self.clock()

    def take(self, num_tokens: int) -> None:
        """Use up tokens. Raises Refusal 429 if too few are left, Refusal 400 if the bucket can never hold enough."""
        if num_tokens > self.per_minute:
            raise Refusal(
                400,
                f"the request asks for {num_tokens} tokens (prompt and output), the key allows {self.per_minute} a "
                "minute; shorten the prompt or lower max_tokens",
            )
        now = self.clock()
        self._level = min(self.per_minute, self._level + (now - self._filled_at) * self.per_minute / 60)
        self._filled_at = now
        if num_tokens > self._level:
            wait_s = math.ceil((num_tokens - self._level) * 60 / self.per_minute)
            sentence = f"the key's {self.per_minute} tokens a minute are used up; send the request again in {wait_s} s"
            raise Refusal(429, sentence, wait_s)
        self._level -= num_tokens


@dataclass(slots=True)
class Tenant:
    """Holder of an API key, or all clients of a server without keys. prefix: precedes the tenant's request ids and
    namespaces. bucket: limit of tokens, if any. num_calls: open gRPC calls. num_long_bytes: see `admit`."""

    name: str
    prefix: str
    max_concurrent_requests: int
    max_namespaces: int | None
    bucket: TokenBucket | None = None
    num_running: int = 0
    num_calls: int = 0
    num_long_bytes: int = 0
    _namespaces: set[str] = field(default_factory=set)

    def namespace(self, asked: str) -> str:
        """Namespace of a request of this tenant. asked: the client's choice, empty for none. Raises Refusal (400) if
        the name is too long, or if admitted requests of the tenant have used max_namespaces others."""
        if len(asked.encode(errors="surrogatepass")) > MAX_NAMESPACE_BYTES:
            raise Refusal(400, f"namespace has more than {MAX_NAMESPACE_BYTES} bytes")
        namespace = self.prefix + asked
        is_full = self.max_namespaces is not None and len(self._namespaces) >= self.max_namespaces
        if is_full and asked and namespace not in self._namespaces:
            sentence = f"namespace {asked[:40]!r} exceeds the limit of {self.max_namespaces}; use an earlier one"
            raise Refusal(400, sentence)
        return namespace

    def use(self, namespace: str) -> None:
        """Count the namespace of an admitted request, a result of `namespace`. Does nothing for one without a name."""
        if self.max_namespaces is not None and namespace.removeprefix(self.prefix):
            self._namespaces.add(namespace)


class Tenants:
    """Finds the tenant of an API key, and admits requests within the limits of tenant and server. num_running: running
    requests of all tenants. num_calls: their open gRPC calls."""

    def __init__(self, keys: Sequence[ApiKey], config: GatewayConfig, clock: Clock = time.monotonic) -> None:
        self._max_concurrent_requests = config.max_concurrent_requests
        self._max_body_bytes = config.max_body_bytes
        self._max_calls = config.max_connections
        self._by_hash = {
            key.key_sha256: Tenant(
                key.tenant,
                f"{key.tenant}/",
                key.max_concurrent_requests,
                config.max_namespaces,
                None if key.max_tokens_per_minute is None else TokenBucket(key.max_tokens_per_minute, clock),
            )
            for key in keys
        }
        # The trie itself bounds the number of namespaces.
        self._everyone = Tenant("everyone", "", config.max_concurrent_requests, max_namespaces=None)
        self.num_running = self.num_calls = self._num_long_bytes = 0

    def of_key(self, key: str | None) -> Tenant:
        """Tenant of an API key. On a server without keys all clients share one tenant. Raises Refusal (401) for a
        missing or unknown key."""
        if not self._by_hash:
            return self._everyone
        if key is None:
            raise Refusal(401, "an API key is needed; send it as `Authorization: Bearer KEY`")
        # The lookup compares hashes, so its time reveals nothing about the keys.
        tenant = self._by_hash.get(hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest())
        if tenant is None:
            raise Refusal(401, "the API key is not known here; correct it")
        return tenant

    @contextmanager
    def open_call(self, tenant: Tenant) -> Iterator[None]:
        """Count a gRPC call as open while the block runs. A tenant among several may have as many as are free. So one
        tenant that opens all that it can has half of them, two have a third each, and others always find free ones.
        Raises Refusal: 429 at a tenant's limit, 503 at the server's limit."""
        num_free = self._max_calls - self.num_calls
        if num_free <= 0:
            raise Refusal(503, f"busy: {self.num_calls} gRPC calls are open; send the request again", RETRY_AFTER_S)
        if len(self._by_hash) > 1 and tenant.num_calls >= num_free:
            raise Refusal(429, f"{tenant.num_calls} gRPC calls of this key are open; end some of them", RETRY_AFTER_S)
        tenant.num_calls += 1
        self.num_calls += 1
        try:
            yield
        finally:
            tenant.num_calls -= 1
            self.num_calls -= 1

    @contextmanager
    def admit(
        self,
        tenant: Tenant,
        num_prompt_bytes: int,
        num_output_tokens: int | None,
        max_seq_len: int,
        num_choices: int = 1,
        weight: int = 1,
    ) -> Iterator[None]:
        """Count a request as running while the block runs. num_prompt_bytes: of one prompt. num_output_tokens:
        limit of the output of one choice; None, or more than max_seq_len, counts as max_seq_len. num_choices: of all
        prompts; each counts as a request. weight: factor for the bytes of a long prompt, see OPENAI_WEIGHT. A tenant
        among several may use as many of the bytes as are free. Raises Refusal: 429 at a tenant's limit, 503 at the
        server's limit, 400 or 413 for a request that alone exceeds a limit."""
        limit = min(tenant.max_concurrent_requests, self._max_concurrent_requests)
        if num_choices > limit:
            raise Refusal(
                400, f"the request has {num_choices} choices; each counts as a request, and {limit} at once are allowed"
            )
        num_long_bytes = weight * num_choices * long_bytes(num_prompt_bytes)
        num_free_bytes = MAX_LONG * self._max_body_bytes - self._num_long_bytes
        if num_long_bytes > MAX_LONG * self._max_body_bytes:
            raise Refusal(
                413, f"the request has {num_choices} choices of {num_prompt_bytes} bytes; send them one after the other"
            )
        if tenant.num_running + num_choices > tenant.max_concurrent_requests and self._by_hash:
            raise Refusal(
                429,
                f"{tenant.num_running} requests of this key are being served, at most {tenant.max_concurrent_requests} "
                "can be; send the request again when one has ended",
                RETRY_AFTER_S,
            )
        if self.num_running + num_choices > self._max_concurrent_requests:
            raise Refusal(503, f"busy: {self.num_running} requests are being served; send it again", RETRY_AFTER_S)
        if num_long_bytes > num_free_bytes:
            raise Refusal(503, "busy: too many long requests are being served; send it again", RETRY_AFTER_S)
        if num_long_bytes and len(self._by_hash) > 1 and tenant.num_long_bytes + num_long_bytes > num_free_bytes:
            raise Refusal(429, "too many long requests of this key are being served; send it again", RETRY_AFTER_S)
        if tenant.bucket is not None:
            wanted = max_seq_len if num_output_tokens is None else min(num_output_tokens, max_seq_len)
            tenant.bucket.take(num_choices * (wanted + -(-num_prompt_bytes // 4)))
        tenant.num_running += num_choices
        self.num_running += num_choices
        tenant.num_long_bytes += num_long_bytes
        self._num_long_bytes += num_long_bytes
        try:
            yield
        finally:
            tenant.num_running -= num_choices
            self.num_running -= num_choices
            tenant.num_long_bytes -= num_long_bytes
            self._num_long_bytes -= num_long_bytes


def long_bytes(num_bytes: int) -> int:
    """Bytes of a body that count for the limits of all bodies."""
    return max(0, num_bytes - SHORT_BYTES)
