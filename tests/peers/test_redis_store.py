"""The external store in Debian's Redis, and its faults: full, gone, slow, empty, refusing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.executors.external_store.kinds import open_store
from penstock.executors.external_store.redis_store import RedisStore
from penstock.executors.external_store.rules import StoreOptions, parse_address
from penstock.executors.external_store.store import StoreFailed, StoreRefuses
from tests.kit.certificates import make_certificate
from tests.kit.redis_server import RedisServer, redis_server
from tests.service.scripts import until

SECRET = "hush-hush"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as found:
        yield found


@pytest.fixture
def empty(server: RedisServer) -> RedisServer:
    with server.client() as client:
        client.flushall()
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
    return server


def options_of(url: str, timeout: float = 20.0, password: str | None = None) -> StoreOptions:
    address = parse_address(url)
    return StoreOptions(service="svc", address=address, timeout=timeout, password=password)


def put(store: RedisStore, octets: bytes = b"octets", seconds: float = 60.0) -> None:
    store.put("key", "0.0", memoryview(octets), seconds)


def put_many(store: RedisStore) -> None:
    for at in range(40):
        store.put("key", f"{at}.0", memoryview(bytes(1 << 18)), 60.0)


def test_a_field_comes_back_until_its_key_is_deleted(empty: RedisServer) -> None:
    store = open_store(options_of(empty.url + "/3"))
    assert store.look() == ()
    store.put("key", "0.0", memoryview(b"one"), 60.0)
    store.put("key", "1.0", memoryview(bytes(1 << 20)), 1000.0)
    assert store.get("key", "0.0") == b"one"
    assert store.get("key", "1.0") == bytes(1 << 20)
    with empty.client(db=3) as client:
        assert 900_000 < client.pttl("key") <= 1_000_000
    store.delete(["key", "other"])
    with pytest.raises(StoreFailed, match="does not have it"):
        store.get("key", "0.0")
    store.close()


def test_every_key_expires(empty: RedisServer) -> None:
    store = RedisStore(options_of(empty.url))
    put(store, seconds=0.001)
    with empty.client() as client:
        until(lambda: not client.keys(), "the end of the key")


def test_a_full_store_says_so_and_keeps_nothing(empty: RedisServer) -> None:
    store = RedisStore(options_of(empty.url))
    with empty.client() as client:
        client.config_set("maxmemory", "2mb")
        with pytest.raises(StoreFailed, match="is full"):
            put_many(store)
        assert client.ttl("key") > 0, "what was set expires"
        store.delete(["key"])
        put(store)


def test_a_store_for_small_values_only_is_asked_about(empty: RedisServer) -> None:
    store = RedisStore(options_of(empty.url))
    with empty.client() as client:
        usual = client.config_get("proto-max-bulk-len")
        client.config_set("proto-max-bulk-len", 1 << 20)
        with pytest.raises(StoreFailed, match=r"cannot be reached: .*proto-max-bulk-len smaller"):
            put(store, bytes(32 << 20))
        client.config_set("proto-max-bulk-len", usual["proto-max-bulk-len"])
    put(store, bytes(2 << 20))


def test_a_store_that_drops_keys_is_reported(empty: RedisServer) -> None:
    store = RedisStore(options_of(empty.url))
    with empty.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        (wrong,) = store.look()
        assert "maxmemory-policy allkeys-lru" in wrong
        assert "must be noeviction" in wrong
        client.config_set("maxmemory", "8mb")
        put(store, bytes(1 << 20))
        for at in range(40):
            client.set(f"other{at}", bytes(1 << 18))
    with pytest.raises(StoreFailed, match="maxmemory-policy, allkeys-lru, drops keys"):
        store.get("key", "0.0")


def test_a_store_that_was_restarted_is_used_again_and_what_is_lost_is_told(
    tmp_path: Path,
) -> None:
    with redis_server(tmp_path) as server:
        store = RedisStore(options_of(server.url))
        put(store)
        server.kill()
        with pytest.raises(StoreFailed, match="cannot be reached"):
            put(store)
        server.start()
        with pytest.raises(StoreFailed, match="the store was restarted without it"):
            store.get("key", "0.0")
        put(store)
        assert store.get("key", "0.0") == b"octets"


def test_a_store_that_does_not_answer_costs_the_time_limit(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        store = RedisStore(options_of(server.url, timeout=0.2))
        server.stop()
        with pytest.raises(StoreFailed, match=r"did not answer within 0\.2 s"):
            put(store)
        server.go_on()


def test_passwords(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    with redis_server(tmp_path, "--requirepass", SECRET) as server:
        host = f"127.0.0.1:{server.port}"
        for good in (
            options_of(f"redis://:{SECRET}@{host}"),
            options_of(f"redis://default:{SECRET}@{host}"),
            options_of(server.url, password=str(file)),
        ):
            put(RedisStore(good))
        for bad in (
            options_of(f"redis://:{SECRET}-no@{host}"),
            options_of(f"redis://nobody:{SECRET}@{host}"),
            options_of(server.url),
        ):
            with pytest.raises(StoreRefuses, match="does not accept the user") as caught:
                put(RedisStore(bad))
            assert SECRET not in f"{caught.value!r} {bad!r} {bad.address}"
        with server.client(password=SECRET) as client:
            client.acl_setuser(
                "reader", enabled=True, passwords=["+pw"], commands=["+ping"], keys=["*"]
            )
        reader = RedisStore(options_of(f"redis://reader:pw@{host}"))
        assert reader.look() == (), "it may not ask for the settings"
        with pytest.raises(StoreRefuses, match="does not let the user do this"):
            put(reader)
        missing = replace(options_of(server.url), password=str(tmp_path / "none"))
        with pytest.raises(StoreRefuses, match="has no password"):
            RedisStore(missing)


def test_tls(tmp_path: Path) -> None:
    tls = make_certificate(tmp_path, "IP:127.0.0.1")
    with redis_server(tmp_path, tls=tls) as server:
        put(RedisStore(replace(options_of(server.url), ca_file=str(tls[0]))))
        with pytest.raises(StoreFailed, match="certificate"):
            put(RedisStore(options_of(server.url)))
        with pytest.raises(StoreFailed, match="cannot be reached"):
            put(RedisStore(options_of(server.url.replace("rediss", "redis"))))


def test_the_name_in_a_certificate_is_checked() -> None:
    store = RedisStore(StoreOptions(service="s", address=parse_address("rediss://127.0.0.1")))
    given = store._redis.connection_pool.connection_kwargs
    assert given["ssl_check_hostname"] is True
