import pytest

from penstock.client.endpoints import Endpoint, parse_endpoints


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9993", "127.0.0.1", 9993),
        ("localhost:1", "localhost", 1),
        ("model_server.example.org:65535", "model_server.example.org", 65535),
        ("[::1]:9993", "::1", 9993),
    ],
)
def test_an_endpoint_is_host_and_port_and_writes_itself_back(
    text: str, host: str, port: int
) -> None:
    (endpoint,) = parse_endpoints([text])
    assert endpoint == Endpoint(host=host, port=port)
    assert str(endpoint) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        ":9993",
        "localhost:",
        "localhost:0",
        "localhost:65536",
        "localhost:９９９３",
        "localhost:+1",
        "::1:9993",
        "[::g]:9993",
        "[127.0.0.1]:9993",
        "unix:/run/socket:1",
        "http://localhost:9993",
        "a b:1",
        "a,b:1",
        "a\n:1",
    ],
)
def test_what_is_no_endpoint_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        parse_endpoints([text])


@pytest.mark.parametrize("endpoints", ["localhost:9993", None, {"localhost:9993"}, [9993]])
def test_only_a_list_of_texts_is_taken(endpoints: object) -> None:
    with pytest.raises(TypeError, match="host:port"):
        parse_endpoints(endpoints)


def test_no_endpoint_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        parse_endpoints([])
