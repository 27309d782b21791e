"""Pictures are fetched from listed hosts with public addresses, and from nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from server.http.errors import ApiError
from server.prompts.images import fetching
from server.prompts.images.fetching import ImageFetcher, PublicBackend, is_public, resolved
from server.settings.requests import RequestSettings
from tests.server.prompts.images.files import To, answering, serving_files

HOSTS = RequestSettings(image_urls="pictures.example, *.Mirror.example, inside.example").image_hosts


@dataclass
class Web:
    """Where every name has a public address but for `inside`, which has a private one as well. asked: the Host of each
    request that was answered."""

    to: To
    asked: list[str] = field(default_factory=list)

    def fetch(self, url: str, most_bytes: int = 10_000, hosts: Sequence[str] = HOSTS) -> bytes:
        resolve = answering("1.1.1.1", inside=["1.1.1.1", "10.0.0.1"])
        fetcher = ImageFetcher(PublicBackend(resolve, self.to))
        return asyncio.run(fetcher.fetch(url, hosts, most_bytes))

    def refusal(self, url: str, most_bytes: int = 10_000) -> str:
        with pytest.raises(ApiError) as refused:
            self.fetch(url, most_bytes)
        assert (refused.value.status, refused.value.param) == (400, "messages")
        return refused.value.message


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "a.png").write_bytes(b"a" * 5_000)
    asked: list[str] = []
    with serving_files(tmp_path, asked) as port:
        yield Web(To(port), asked)


@pytest.mark.parametrize("host", ["pictures.example", "PICTURES.example.", "eu.mirror.example"])
def test_a_listed_hosts_file_comes_from_the_address_that_was_checked(web: Web, host: str) -> None:
    assert web.fetch(f"http://{host}/a.png?size=1") == b"a" * 5_000
    assert web.to.connected == ["1.1.1.1"]
    assert [each.lower() for each in web.asked] == [host.lower()]


def test_a_star_lists_all_hosts(web: Web) -> None:
    hosts = RequestSettings(image_urls="*").image_hosts
    assert web.fetch("http://anywhere.example/a.png", hosts=hosts) == b"a" * 5_000


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a.png",
        "http://mirror.example/a.png",
        "http://pictures.example.evil.com/a.png",
        "http://127.0.0.1/a.png",
        "http://evil.com#pictures.example/a.png",
        "http://evil.com\\@pictures.example/a.png",
    ],
)
def test_other_hosts_are_refused_before_anything_is_connected(web: Web, url: str) -> None:
    assert "which --image-urls does not list" in web.refusal(url) or "must be of" in web.refusal(url)
    assert web.to.connected == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user:secret@pictures.example/a.png", "without a user"),
        ("http://pictures.example:8080/a.png", "on its usual port"),
        ("ftp://pictures.example/a.png", "must be of http or https"),
        ("file:///etc/passwd", "must be of http or https"),
        ("http://pictures.example:port/a.png", "is not a valid one"),
        ("http://pictüres.example/a.png", "is not a valid one"),
        ("http://inside.example/a.png", "has a host whose address is not public"),
        ("http://pictures.example/b.png", "was answered with status 404"),
    ],
)
def test_what_is_not_fetched_is_told(web: Web, url: str, message: str) -> None:
    assert message in web.refusal(url)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1"),
        *("::ffff:10.0.0.1", "::10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::1", "2001:0:a00:1::1"),
        *("2001:db8::1", "no address"),
    ],
)
def test_addresses_outside_the_public_internet(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "::ffff:1.1.1.1", "2606:4700::1111"])
def test_addresses_of_the_public_internet(address: str) -> None:
    assert is_public(address)


def test_numbers_that_a_resolver_takes_for_an_address_are_checked_as_that() -> None:
    for host in ("2130706433", "0x7f.1", "127.1"):
        addresses = asyncio.run(resolved(host, 80))
        assert addresses == ["127.0.0.1"] * len(addresses)
        assert not any(map(is_public, addresses))


def test_redirects_are_followed_where_they_lead_to_listed_hosts(web: Web) -> None:
    assert web.fetch("http://pictures.example/to//a.png") == b"a" * 5_000
    assert web.fetch("http://pictures.example/to/http://eu.mirror.example/a.png") == b"a" * 5_000
    assert web.asked[-2:] == ["pictures.example", "eu.mirror.example"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("http://example.com/a.png", "has the host 'example.com'"),
        ("http://169.254.169.254/latest", "has the host '169.254.169.254'"),
        ("http://inside.example/a.png", "has a host whose address is not public"),
        ("file:///etc/passwd", "must be of http or https"),
        ("/to//to//to//to//a.png", "more than 3 redirects"),
    ],
)
def test_redirects_to_elsewhere_are_refused(web: Web, target: str, message: str) -> None:
    assert message in web.refusal(f"http://pictures.example/to/{target}")
    assert set(web.asked) == {"pictures.example"}


def test_a_file_is_read_up_to_its_limit(web: Web) -> None:
    assert web.fetch("http://pictures.example/a.png", 5_000) == b"a" * 5_000
    assert "has more than 4,999 bytes" in web.refusal("http://pictures.example/a.png", 4_999)


def test_a_host_that_is_silent_is_given_up(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "SECONDS", 0)
    assert web.refusal("http://pictures.example/a.png") == "A picture's URL did not come within 0 s."


@pytest.mark.parametrize("hosts", ["http://a.example", "a.example:80", "a*b", ""])
def test_lists_of_no_hosts_are_refused(hosts: str) -> None:
    with pytest.raises(ValueError, match="is no host's name"):
        RequestSettings(image_urls=hosts)
