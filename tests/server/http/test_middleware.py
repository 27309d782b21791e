"""What every request gets around its route."""

import pytest

from tests.server.servers import RunningServer, wait_until


@pytest.mark.parametrize(
    "path",
    ["/", "/favicon.ico", "/web/app.js", "/health", "/ready", "/version", "/metrics", "/is_sleeping", "/v1/models"],
)
def test_head_gives_the_headers_of_get(server: RunningServer, path: str) -> None:
    whole, head = server.get(path), server.http.head(path)
    assert head.status_code == whole.status_code == 200
    assert head.content == b""
    changing = (
        {"x-request-id", "content-length", "date"} if path in ("/metrics", "/health") else {"x-request-id", "date"}
    )
    assert {name: value for name, value in head.headers.items() if name not in changing} == {
        name: value for name, value in whole.headers.items() if name not in changing
    }
    assert int(head.headers["content-length"]) > 0


def test_head_of_what_is_not_there_has_the_status_alone(server: RunningServer) -> None:
    assert [server.http.head(path).status_code for path in ("/nothing", "/v1/completions")] == [404, 405]


def test_the_log_tells_a_head_by_its_route(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "gander.http"):
        server.http.head("/v1/models")
        wait_until(lambda: any(": HEAD /v1/models 200 " in message for message in caplog.messages))
