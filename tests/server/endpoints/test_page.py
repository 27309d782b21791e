"""The page's files over plain HTTP: headers, caches, what is open and what is not there."""

import re
from pathlib import Path

import pytest

from server.config import ServerSettings
from tests.server.servers import RunningServer, make_model_folder, running_server

WEB = Path(__file__).parents[3] / "server" / "web"
FOLDERS = [".", "pages", "drafting", "elements", "api", "vendor"]  # one may import from itself and those after it
OWN_FILES = [path for path in WEB.rglob("*.*") if not {"vendor", "__pycache__"} & set(path.parts)]


def test_the_page_comes_with_a_policy_that_allows_only_its_own_files(server: RunningServer) -> None:
    response = server.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "<title>Gander</title>" in response.text
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; img-src 'self' data:;")
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/web/app.js", "javascript"),
        ("/web/pages/race.js", "javascript"),
        ("/web/style.css", "text/css"),
        ("/web/vendor/marked.js", "javascript"),
        ("/web/vendor/marked.LICENSE.txt", "text/plain"),
        ("/favicon.ico", "image/svg+xml"),
    ],
)
def test_files_have_their_type_and_are_asked_for_again(server: RunningServer, path: str, kind: str) -> None:
    response = server.get(path)
    assert response.status_code == 200
    assert kind in response.headers["content-type"]
    assert response.headers["cache-control"] == "no-cache"
    again = server.http.get(path, headers={"If-None-Match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    head = server.http.head(path)
    assert (head.status_code, head.headers["content-length"]) == (200, response.headers["content-length"])


@pytest.mark.parametrize(
    "path", ["/web/", "/web/nothing.js", "/web/__init__.py", "/web/..%2Fapp.py", "/web/vendor", "/web/pages"]
)
def test_nothing_else_of_the_folder_is_served(server: RunningServer, path: str) -> None:
    response = server.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


def test_the_page_is_open_where_calls_need_a_key(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    with running_server(ServerSettings(model=str(folder), drain_seconds=2, api_keys="alice")) as locked:
        for path in ("/", "/favicon.ico", "/web/app.js"):
            assert locked.get(path).status_code == 200, path
        for path in ("/web", "/v1/models", "/webx"):
            assert locked.get(path).status_code == 401, path


def test_the_page_is_not_in_the_document_of_the_api(server: RunningServer) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    assert not [path for path in paths if path in ("/", "/favicon.ico") or path.startswith("/web")]


def test_the_page_needs_nothing_from_elsewhere() -> None:
    """Every address in our own files is a path, a module beside it or a licence in words."""
    for path in OWN_FILES:
        for scheme in ("https://", "http://", "//cdn"):
            text = path.read_text().replace("http://www.w3.org/", "")
            assert scheme not in text, path


def test_the_page_has_no_script_and_no_style_within_it() -> None:
    text = (WEB / "index.html").read_text()
    assert "<style" not in text
    assert "style=" not in text
    assert "onclick" not in text
    assert text.count("<script") == text.count("<script src=") + text.count('<script type="module" src=')


def test_modules_stay_small() -> None:
    modules = [path for path in OWN_FILES if path.suffix == ".js"]
    assert len(modules) > 30
    for path in modules:
        assert len(path.read_text().splitlines()) <= 200, path


def test_modules_import_from_their_own_folder_and_those_below_it() -> None:
    folders = {path.relative_to(WEB).parts[0] for path in OWN_FILES if path.parent != WEB}
    assert folders == {*FOLDERS} - {".", "vendor"}
    for path in OWN_FILES:
        for name in re.findall(r'^import .*"(.+)";$', path.read_text(), re.MULTILINE):
            imported = (path.parent / name).resolve()
            assert imported.is_file(), (path, name)
            places = [FOLDERS.index(str(each.parent.relative_to(WEB))) for each in (path, imported)]
            assert places == sorted(places), (path, name)


def test_health_says_whether_the_model_can_chat(server: RunningServer) -> None:
    assert server.get("/health").json()["engine"]["has_chat_template"] is True
