"""An external store in Redis or Valkey: a hash for each key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from penstock.client.token import token_at
from penstock.errors import ModelError
from penstock.executors.external_store.rules import SCHEMES, StoreOptions
from penstock.executors.external_store.store import StoreFailed, StoreLacks, StoreRefuses

_PORT: Final = 6379
_CONNECT_TIMEOUT: Final = 2.0  # seconds, if the time limit of commands is not shorter
_WANTED_POLICY: Final = "noeviction"


class _Credentials:
    """The user and the password for a new connection; a file with the password may change."""

    def __init__(self, options: StoreOptions) -> None:
        self._user = options.address.user
        self._password: Any = options.address.password
        if options.password is not None:
            self._password = token_at(options.password)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._password() if callable(self._password) else self._password
        return (password or "",) if self._user is None else (self._user, password or "")


class RedisStore:
    """See the module, and ``ExternalStore``.

    Args:
        options: with an address of our own schemes.

    Raises:
        StoreRefuses: there is no password in its place, or a file cannot be used.
    """

    def __init__(self, options: StoreOptions) -> None:
        address = options.address
        more: dict[str, Any] = {}
        if SCHEMES[address.scheme]:
            more = {
                "ssl": True,
                "ssl_check_hostname": True,  # not the default of redis-py 5
                "ssl_ca_certs": options.ca_file,
                "ssl_certfile": options.cert_file,
                "ssl_keyfile": options.key_file or options.cert_file,
            }
        self._timeout = options.timeout
        try:
            named = address.user or address.password or options.password
            if named:
                more["credential_provider"] = _Credentials(options)
        except ModelError as error:
            raise StoreRefuses(f"has no password: {error}") from None
        self._redis = redis.Redis(
            host=address.host,
            port=address.port or _PORT,
            db=int(address.path or 0),
            socket_timeout=options.timeout,
            socket_connect_timeout=min(_CONNECT_TIMEOUT, options.timeout),
            # Once again, with a new connection: the store may have been restarted.
            retry=Retry(NoBackoff(), 1, (redis.ConnectionError,)),
            protocol=2,
            **more,
        )

    def put(self, key: str, field: str, octets: memoryview, seconds: float) -> None:
        """See ExternalStore."""
        with self._failures(), self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(key, field, octets)
            pipe.pexpire(key, ceil(1000 * seconds))
            pipe.execute()

    def get(self, key: str, field: str) -> bytes:
        """See ExternalStore."""
        with self._failures():
            found: Any = self._redis.hget(key, field)
            if found is not None:
                octets: bytes = found
                return octets
            raise StoreLacks(f"does not have it: {self._why_gone()}")

    def delete(self, keys: Sequence[str]) -> None:
        """See ExternalStore."""
        with self._failures():
            self._redis.unlink(*keys)

    def look(self) -> Sequence[str]:
        """See ExternalStore."""
        with self._failures():
            self._redis.ping()
            policy = self._info().get("maxmemory_policy", _WANTED_POLICY)
        if policy == _WANTED_POLICY:
            return ()
        return (
            f"has maxmemory-policy {policy}, with which it may drop values that are needed: it must"
            f" be {_WANTED_POLICY}",
        )

    def close(self) -> None:
        """See ExternalStore."""
        self._redis.close()

    def _info(self) -> dict[str, Any]:
        try:
            found: Any = self._redis.info()
        except ResponseError:  # the user may not ask
            return {}
        info: dict[str, Any] = found
        return info

    def _why_gone(self) -> str:
        info = self._info()
        policy = info.get("maxmemory_policy", _WANTED_POLICY)
        if policy != _WANTED_POLICY and info.get("evicted_keys"):
            return f"its maxmemory-policy, {policy}, drops keys, and must be {_WANTED_POLICY}"
        age = info.get("uptime_in_seconds")
        since = "" if age is None else f" {age} s ago"
        return f"its time is over, or the store was restarted without it{since}"

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn the errors of the library into ours. Their texts contain no password."""
        try:
            yield
        except (AuthenticationError, AuthorizationError):
            raise StoreRefuses("does not accept the user and the password") from None
        except NoPermissionError as error:
            raise StoreRefuses(f"does not let the user do this: {error}") from None
        except OutOfMemoryError:
            raise StoreFailed("is full (maxmemory)") from None
        except ReadOnlyError:
            raise StoreRefuses("is a replica, which cannot be written") from None
        except MovedError:
            raise StoreRefuses("is a Redis Cluster, which is not supported") from None
        except BusyLoadingError:
            raise StoreFailed("is loading its data") from None
        except redis.TimeoutError:
            raise StoreFailed(f"did not answer within {self._timeout:g} s") from None
        except redis.ConnectionError as error:
            limit = "; is its proto-max-bulk-len smaller than 64 MiB?" * (
                "writing to" in str(error)
            )
            raise StoreFailed(f"cannot be reached: {error}{limit}") from None
        except (RedisError, OSError, ValueError) as error:
            raise StoreFailed(f"cannot be used: {type(error).__name__}: {error}") from None
