"""Who sends a request, and whether that tenant may send another one now."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeline.config.schema import ApiKey, GatewayConfig
from pipeline.gateway.refusal import Refusal

Clock = Callable[[], float]
# Retry-After where nothing is known about when a place becomes free.
RETRY_AFTER_S = 1
# Longest name of a namespace that a client may choose, in bytes of UTF-8.
MAX_NAMESPACE_BYTES = 128


@dataclass(slots=True)
class TokenBucket:
    """Tokens that may be asked for: `per_minute` at most, refilled evenly over a minute."""

    per_minute: int
    clock: Clock
    _level: float = field(init=False)
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._level, self._filled_at = float(self.per_minute), self.clock()

    def take(self, num_tokens: int) -> None:
        """Raises Refusal if they are not there: 429, or 400 where they never will be."""
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
            raise Refusal(429, f"the key's {self.per_minute} tokens a minute are used up", max(1, wait_s))
        self._level -= num_tokens


@dataclass(slots=True)
class Tenant:
    """One client, or all of them where there are no keys. prefix: of its namespaces."""

    name: str
    prefix: str
    max_concurrent_requests: int
    max_namespaces: int | None
    bucket: TokenBucket | None = None
    num_running: int = 0
    _namespaces: set[str] = field(default_factory=set)

    def namespace(self, asked: str) -> str:
        """The namespace of a request whose client asked for `asked`, empty for none. Raises Refusal for a name that is
        too long, or one too many."""
        if len(asked.encode(errors="surrogatepass")) > MAX_NAMESPACE_BYTES:
            raise Refusal(400, f"namespace has more than {MAX_NAMESPACE_BYTES} bytes")
        if self.max_namespaces is not None and asked not in self._namespaces:
            if len(self._namespaces) >= self.max_namespaces:
                raise Refusal(
                    400, f"namespace {asked[:40]!r} is one too many; {self.max_namespaces} can be used, reuse one"
                )
            self._namespaces.add(asked)
        return self.prefix + asked

    def request_id(self, asked: str) -> str:
        """The id of a request as the server behind knows it: by its id a request can be stopped, so that of one tenant
        is none of another's. Empty for a request without one."""
        return self.prefix + asked if asked else ""


class Tenants:
    """All tenants of a server. num_running: requests of all of them that are being served."""

    def __init__(
        self, keys: Sequence[ApiKey], config: GatewayConfig, max_seq_len: int, clock: Clock = time.monotonic
    ) -> None:
        """max_seq_len: of the engine, so the most tokens of a request that does not say how many it wants."""
        self._max_concurrent_requests = config.max_concurrent_requests
        self._max_seq_len = max_seq_len
        self._by_hash = {
            key.key_sha256: Tenant(
                key.tenant,
                "" if config.share_drafts else f"{key.tenant}/",
                key.max_concurrent_requests,
                config.max_namespaces,
                None if key.max_tokens_per_minute is None else TokenBucket(key.max_tokens_per_minute, clock),
            )
            for key in keys
        }
        # The trie bounds the number of namespaces by itself.
        self._everyone = Tenant("everyone", "", config.max_concurrent_requests, max_namespaces=None)
        self.num_running = 0

    def of_key(self, key: str | None) -> Tenant:
        """The holder of a key. Raises Refusal (401) if keys are needed and it is none of them."""
        if not self._by_hash:
            return self._everyone
        if key is None:
            raise Refusal(401, "an API key is needed; send it as `Authorization: Bearer KEY`")
        # Looked up by its hash: how long that takes says nothing about the keys.
        tenant = self._by_hash.get(hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest())
        if tenant is None:
            raise Refusal(401, "the API key is not known here")
        return tenant

    def admit(self, tenant: Tenant, num_prompt_bytes: int, num_output_tokens: int | None) -> Admission:
        """Take in one request of a tenant, until its admission is released. num_output_tokens: the most that it can
        bring, None if it does not say. Raises Refusal (429 for the tenant's limits, 503 for the server's)."""
        if tenant.num_running >= tenant.max_concurrent_requests and self._by_hash:
            raise Refusal(
                429, f"{tenant.num_running} requests of this key are being served, which is its limit", RETRY_AFTER_S
            )
        if self.num_running >= self._max_concurrent_requests:
            raise Refusal(503, f"busy: {self.num_running} requests are being served; send it again", RETRY_AFTER_S)
        if tenant.bucket is not None:
            wanted = self._max_seq_len if num_output_tokens is None else num_output_tokens
            tenant.bucket.take(wanted + -(-num_prompt_bytes // 4))
        return Admission(self, tenant)


class Admission:
    """One request that is being served; as a context manager it is released at the block's end."""

    def __init__(self, tenants: Tenants, tenant: Tenant) -> None:
        self._tenants, self._tenant = tenants, tenant
        self._is_held = True
        tenant.num_running += 1
        tenants.num_running += 1

    def release(self) -> None:
        """Twice does nothing."""
        if self._is_held:
            self._is_held = False
            self._tenant.num_running -= 1
            self._tenants.num_running -= 1

    def __enter__(self) -> Admission:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def bearer_key(authorization: str | None) -> str | None:
    """The key in the value of an Authorization header, if there is one."""
    if authorization is None:
        return None
    scheme, _, key = authorization.partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None
